"""The base of codecs that send some of the numbers, with their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from farandole.base.contracts import Part, Transport
from farandole.base.types import DType
from farandole.strategies.codecs.base import narrowed, widened
from farandole.strategies.codecs.pushable import Pushable

if TYPE_CHECKING:
    from farandole.base.types import Array


_MOST = 1 << 32  # numbers whose places fit 4 bytes


class Sparse(Pushable):
    """A codec with which all ranks receive the numbers and places (4 bytes each) of all ranks, and
    sum them in rank order.
    """

    even: ClassVar[bool] = True  # whether all ranks select the same number of elements

    def select(self, values: Array) -> Array:
        """Return the places of the numbers to send, without repetition, as uint32. Numbers that are
        not finite are selected first.
        """
        raise NotImplementedError

    def add_up(self, values: Array, parts: Sequence[Part], transport: Transport) -> Array:
        payload = self.payload(values, parts, transport.rank)
        sizes = self._sizes(len(payload), transport)
        gathered = np.empty(sum(sizes), np.uint8)
        transport.allgather(payload, gathered, sizes)
        self.sent += len(payload) * (transport.size - 1)
        total, begin = np.zeros_like(values), 0
        for nbytes in sizes:
            _add(gathered[begin : begin + nbytes], parts[0].buffer.dtype, total)
            begin += nbytes
        return total

    def payload(self, values: Array, parts: Sequence[Part], rank: int) -> Array:
        dtype = parts[0].buffer.dtype
        if len(values) > _MOST:
            raise ValueError(
                f"the codec {self.name} sends places as 32-bit numbers, and a parameter has"
                f" {len(values)} elements, more than {_MOST}. Use another codec for it"
            )
        places = self.select(values)
        chosen = narrowed(values[places], dtype)
        values[places] -= widened(chosen, dtype)
        return np.concatenate([places.view(np.uint8), chosen.view(np.uint8)])

    def unpack(self, payload: Array, out: Array) -> None:
        """See ``contracts.PushCodec``."""
        out[:] = 0
        _add(payload, DType(out.dtype.name), out)

    def _sizes(self, own: int, transport: Transport) -> list[int]:
        """Return the length of each rank's payload."""
        if self.even:
            return [own] * transport.size
        sizes = np.empty(transport.size, np.int64)
        transport.allgather(
            np.array([own]).view(np.uint8), sizes.view(np.uint8), [sizes.itemsize] * transport.size
        )
        self.sent += sizes.itemsize * (transport.size - 1)
        return list(map(int, sizes))


def _add(payload: Array, dtype: DType, total: Array) -> None:
    """Add the numbers of a payload to ``total``. Raises ValueError or IndexError for a malformed
    one.
    """
    middle = len(payload) // (4 + dtype.itemsize) * 4
    numbers = payload[middle:].copy().view(dtype.storage)
    total[payload[:middle].copy().view(np.uint32)] += widened(numbers, dtype)
