"""Digests of arrays and texts, by which ranks find out whether they hold the same content.

A digest looks at a sample of an array, so that it costs little for a large one.
"""

from __future__ import annotations

from _blake2 import blake2b  # hashlib loads OpenSSL: milliseconds at the start of each rank
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array

SAMPLE = 1024  # elements of an array that are looked at
_BITS = 62  # of a digest: it and its negative are int64


def digest(array: Array) -> int:
    """Return a number from 1 to 2**62 for an array's type, shape and bits: of at most ``SAMPLE``
    elements spread over it.

    ``array``: of any type, in any layout. Two arrays that differ in all elements (of other seeds,
    or a step apart) have different digests; the bits count, so that NaN equals itself.
    """
    flat = sampled(array.reshape(-1))
    return digest_of_bytes(
        f"{array.dtype}{array.shape}".encode(), np.ascontiguousarray(flat).view(np.uint8).data
    )


def gradient_digest(array: Array) -> int:
    """Return ``digest``, or 0 for an array that says nothing about data: all zeros, or NaN or
    infinite somewhere.
    """
    seen = np.ascontiguousarray(sampled(array.reshape(-1)))
    return digest(array) if seen.view(np.uint8).any() and np.isfinite(seen).all() else 0


def sampled(flat: Array) -> Array:
    """Return at most ``SAMPLE`` elements of a 1-D array, over its whole length."""
    return flat[:: stride(len(flat))]


def stride(count: int) -> int:
    """Return the distance between the elements of a sample of ``count``. It is odd, so that in no
    matrix they are one column.
    """
    return 1 if count <= SAMPLE else -(-count // SAMPLE) | 1


def digest_of_bytes(*parts: bytes | memoryview) -> int:
    found = blake2b(digest_size=8)
    for part in parts:
        found.update(part)
    return (int.from_bytes(found.digest(), "little") >> (64 - _BITS)) + 1


def digest_of_text(text: str) -> int:
    return digest_of_bytes(text.encode())


def combined(digests: Sequence[int]) -> int:
    """Return one digest for several."""
    return digest_of_bytes(np.array(digests, dtype=np.int64).tobytes())
