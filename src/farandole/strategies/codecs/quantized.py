"""The base of codecs that send every element in a few bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar
from zlib import crc32

import numpy as np

from farandole.base.contracts import Part, Transport
from farandole.strategies.codecs.base import FlatCodec, cleared, unit_key
from farandole.strategies.codecs.pushable import Pushable, check_length

if TYPE_CHECKING:
    from farandole.base.types import Array

    Generator = np.random.Generator

_SEED = 0xFA7A


class Quantized(FlatCodec):
    """A codec in which each rank reduces a slice: it receives the encoded slices of all ranks and
    sends the encoded sum to all ranks.

    With ``feedback``, the error of this second encoding stays with the reducing rank:
    ``owed/<key>`` in the state is the error of one tensor, from the element ``at/<key>`` on.
    """

    block: ClassVar[int] = 1  # slices begin at multiples of this
    # ``encode`` draws random numbers; steps are counted as ``count/<key>``.
    seeded: ClassVar[bool] = False

    def nbytes(self, count: int) -> int:
        """Return the length of ``encode``'s result for ``count`` elements."""
        raise NotImplementedError

    def encode(self, values: Array, generator: Generator | None) -> Array:
        """Return ``values`` (float32 or float64) encoded as uint8."""
        raise NotImplementedError

    def decode(self, payload: Array, out: Array) -> None:
        """Decode ``payload`` into ``out``."""
        raise NotImplementedError

    def add_up(self, values: Array, parts: Sequence[Part], transport: Transport) -> Array:
        rank, key = transport.rank, unit_key(parts)
        slices = self._slices(values, transport.size)
        owed = (
            self._owed(values, parts, len(slices[0]) * rank, len(slices[rank]))
            if self.feedback
            else None
        )
        sizes = [self.nbytes(len(piece)) for piece in slices]
        generator = self._generator(key, rank) if self.seeded else None
        payloads = [self.encode(piece, generator) for piece in slices]
        if self.feedback:
            for piece, payload in zip(slices, payloads, strict=True):
                piece -= self._decoded(payload, piece)
        own = self._sum_of_slice(payloads, sizes, slices[rank], transport)
        if owed is not None:
            own += owed
        payload = self.encode(own, generator)
        if owed is not None:
            own -= self._decoded(payload, own)
            cleared(own)
            self._keep_owed(own, parts, len(slices[0]) * rank, owed)
        return self._gathered(payload, sizes, values, transport)

    def _owed(self, values: Array, parts: Sequence[Part], begin: int, length: int) -> Array:
        """Return the errors that this rank owes for its slice. Errors for other elements (the
        groups of tensors may change) are added to this rank's ``values``.
        """
        found = np.zeros(length, values.dtype)
        for part, place, low, high, at in _overlaps(values, parts, begin, length):
            owed, since = (
                self._state.get(f"owed/{part.key}"),
                int(self.kept("at", part.key, 1, np.int64)[0]),
            )
            if owed is None or owed.dtype != values.dtype:
                continue
            if (since, len(owed)) == (at, high - low):
                found[low:high] = owed
            elif since + len(owed) <= len(place):
                place[since : since + len(owed)] += owed
                rest = self.kept("residual", part.key, len(place), values.dtype).copy()
                rest[since : since + len(owed)] += owed
                self.keep("residual", part.key, rest)  # the tensor may be retracted
        return found

    def _keep_owed(self, own: Array, parts: Sequence[Part], begin: int, before: Array) -> None:
        """Keep ``own``, the errors of the slice that begins at ``begin``. ``before``: the previous
        errors.
        """
        for part, _, low, high, at in _overlaps(own, parts, begin, len(own)):
            if low == high:
                self._state.pop(f"owed/{part.key}", None)
                continue
            self.keep("owed", part.key, own[low:high])
            self.keep("at", part.key, np.array([at]))
            if not part.given:
                self.remember_for_retract(part, f"owed/{part.key}", 0, before[low:high])

    def _sum_of_slice(
        self, payloads: Sequence[Array], sizes: Sequence[int], piece: Array, transport: Transport
    ) -> Array:
        """Return the sum over the ranks of this rank's slice, added in rank order."""
        size, rank = transport.size, transport.rank
        received = np.empty(size * sizes[rank], np.uint8)
        transport.alltoall(np.concatenate(payloads), sizes, received, [sizes[rank]] * size)
        self.sent += sum(sizes) - sizes[rank]
        total = np.empty_like(piece)
        for number, payload in enumerate(received.reshape(size, sizes[rank])):
            if number:
                total += self._decoded(payload, piece)
            else:
                self.decode(payload, total)
        return total

    def _gathered(
        self, payload: Array, sizes: Sequence[int], values: Array, transport: Transport
    ) -> Array:
        """Return all slices of the sum, as every rank decodes them."""
        gathered = np.empty(sum(sizes), np.uint8)
        transport.allgather(payload, gathered, sizes)
        self.sent += len(payload) * (transport.size - 1)
        total, begin = np.empty_like(values), 0
        for nbytes, piece in zip(sizes, self._slices(total, transport.size), strict=True):
            self.decode(gathered[begin : begin + nbytes], piece)
            begin += nbytes
        return total

    def _slices(self, values: Array, size: int) -> list[Array]:
        share = -(-len(values) // (size * self.block)) * self.block
        return [values[number * share : (number + 1) * share] for number in range(size)]

    def _decoded(self, payload: Array, like: Array) -> Array:
        out = np.empty_like(like)
        self.decode(payload, out)
        return out

    def _generator(self, key: str, rank: int) -> Generator:
        """Return a generator whose sequence differs between ranks and steps, and is the same in
        each run.
        """
        count = self.kept("count", key, 1, np.int64)
        seed = np.random.SeedSequence([_SEED, crc32(key.encode()), int(count[0]), rank])
        self.keep("count", key, count + 1)
        return np.random.Generator(np.random.SFC64(seed))


class PushQuantized(Quantized, Pushable):
    """A codec whose payload is meaningful without other ranks' payloads."""

    def payload(self, values: Array, parts: Sequence[Part], rank: int) -> Array:
        payload = self.encode(
            values, self._generator(unit_key(parts), rank) if self.seeded else None
        )
        if self.feedback:
            values -= self._decoded(payload, values)
        return payload

    def unpack(self, payload: Array, out: Array) -> None:
        """See ``contracts.PushCodec``."""
        check_length(payload, self.nbytes(len(out)))
        self.decode(payload, out)


def _overlaps(
    flat: Array, parts: Sequence[Part], begin: int, length: int
) -> Iterator[tuple[Part, Array, int, int, int]]:
    """Yield each part, its place in ``flat``, and its overlap with a slice: begin and end within
    the slice, and begin within the part.
    """
    first = 0
    for part in parts:
        last = first + len(part.buffer.data)
        low, high = max(first, begin), min(last, begin + length)
        if part.key:
            inside = (low - begin, high - begin, low - first) if low < high else (0, 0, 0)
            yield part, flat[first:last], *inside
        first = last


def in_blocks(values: Array, block: int) -> Array:
    """Return ``values`` as rows of ``block`` numbers, the last one padded with zeros."""
    rows = -(-len(values) // block)
    if rows * block == len(values):
        return values.reshape(rows, block)
    padded = np.zeros(rows * block, values.dtype)
    padded[: len(values)] = values
    return padded.reshape(rows, block)
