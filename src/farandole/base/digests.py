"""Digests of arrays and texts, with which ranks compare their content.

A digest samples an array, so that it is cheap even for a large one.
"""

from __future__ import annotations

# hashlib loads OpenSSL, which delays the start of each rank by milliseconds
from _blake2 import blake2b
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array

CHUNK = 8192  # words of 64 bits that are summed for the digest of a whole array
SAMPLE = 1024  # sampled elements per array
_BITS = 62  # bits of a digest: int64 holds both the digest and its negative


def digest(array: Array) -> int:
    """Return an array's digest, from 1 to 2**62, of its type, shape and at most ``SAMPLE``
    elements.

    ``array`` may have any type and layout. Two arrays that differ in all elements (other seeds, or
    one step apart) have different digests. Bits are compared, so NaN equals itself.
    """
    flat = sampled(array.reshape(-1))
    return digest_of_bytes(
        f"{array.dtype}{array.shape}".encode(), np.ascontiguousarray(flat).view(np.uint8).data
    )


def gradient_digest(array: Array) -> int:
    """Return ``digest``, or 0 for an uninformative array: all zeros, or not finite."""
    seen = np.ascontiguousarray(sampled(array.reshape(-1)))
    return digest(array) if seen.view(np.uint8).any() and np.isfinite(seen).all() else 0


def whole_digest(array: Array) -> int:
    """Return a digest of all bytes of an array, as ``digest`` for its samples.

    It combines the sums of chunks of ``CHUNK`` 64-bit words, modulo 2**64, and runs at the speed of
    memory. It detects any change of a single word, but not two changes in one chunk whose sum is
    zero.
    """
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = flat[: len(flat) // 8 * 8].view(np.uint64)
    whole = words[: len(words) // CHUNK * CHUNK].reshape(-1, CHUNK)
    sums = whole.sum(axis=1, dtype=np.uint64)
    rest = words[whole.size :].sum(dtype=np.uint64)
    return digest_of_bytes(
        f"{array.dtype}{array.shape}{rest}".encode(),
        np.ascontiguousarray(sums).view(np.uint8).data,
        flat[len(words) * 8 :].tobytes(),
    )


def sampled(flat: Array) -> Array:
    """Return at most ``SAMPLE`` elements of a 1-D array, spread over its length."""
    return flat[:: stride(len(flat))]


def stride(count: int) -> int:
    """Return the distance between the sampled elements of an array of ``count`` elements.

    It is odd, so that the sample of a matrix is not a single column.
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
    """Return a single digest for several."""
    return digest_of_bytes(np.array(digests, dtype=np.int64).tobytes())
