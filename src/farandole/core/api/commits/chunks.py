"""Values as chunks of bytes: only changed chunks are sent. Pure."""

from __future__ import annotations

import io
import pickle
from _blake2 import blake2b
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle

CHUNK = 256 << 10  # bytes

Parts = list[list[bytes]]  # the chunks of each part: the pickled values, then their arrays


class Delta(NamedTuple):
    """The difference between two versions of packed values.

    - ``sizes``: The number of chunks of each part.
    - ``changed``: The part and index of each chunk that differs from the previous version.
    - ``lengths``: The bytes of each changed chunk.
    """

    sizes: Sequence[int]
    changed: Sequence[tuple[int, int]]
    lengths: Sequence[int]


class PackedValues:
    """Packed values. ``digests``: the digest of each chunk of each part."""

    def __init__(self, values: Any) -> None:
        arrays: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        cloudpickle.Pickler(file, protocol=5, buffer_callback=arrays.append).dump(values)
        self._parts = [file.getbuffer(), *(each.raw() for each in arrays)]
        self.digests = [
            [blake2b(chunk, digest_size=16).digest() for chunk in _chunks(part)]
            for part in self._parts
        ]

    def since(self, known: Sequence[Sequence[bytes]]) -> tuple[Delta, list[memoryview]]:
        """Return the difference from the version whose digests are ``known``, and the changed
        chunks.
        """
        changed, found = list[tuple[int, int]](), list[memoryview]()
        for number, part in enumerate(self._parts):
            before = known[number] if number < len(known) else ()
            for index, chunk in enumerate(_chunks(part)):
                if index >= len(before) or before[index] != self.digests[number][index]:
                    changed.append((number, index))
                    found.append(chunk)
        return Delta([len(each) for each in self.digests], changed, [len(c) for c in found]), found


def applied(parts: Parts, delta: Delta, data: memoryview) -> Parts:
    """Return the next version of ``parts``, which is not changed.

    ``data``: the changed chunks in sequence.
    """
    made: Parts = [
        (parts[number] if number < len(parts) else [])[:size]
        + [b""] * max(0, size - (len(parts[number]) if number < len(parts) else 0))
        for number, size in enumerate(delta.sizes)
    ]
    begin = 0
    for (number, index), length in zip(delta.changed, delta.lengths, strict=True):
        made[number][index] = bytes(data[begin : begin + length])
        begin += length
    return made


def values_of(parts: Parts) -> Any:
    """Return the values packed in ``parts``."""
    pickled, *arrays = (bytearray(b"".join(part)) for part in parts)
    return pickle.loads(pickled, buffers=arrays)


def _chunks(part: memoryview) -> list[memoryview]:
    return [part[begin : begin + CHUNK] for begin in range(0, len(part), CHUNK)]


class LostRank(NamedTuple):
    """A lost or departed rank, with its own values in its last copied commit.

    - ``process``: The number of the process in the job, which is never used again.
    - ``rank``: Its last rank.
    - ``commit``: The number of the commit.
    - ``values``: The values by name; see ``register_per_rank``.
    """

    process: int
    rank: int
    commit: int
    values: Mapping[str, Any]
