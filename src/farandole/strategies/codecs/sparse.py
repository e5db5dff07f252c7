"""The base of codecs that send some of the numbers, with their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from farandole.contracts import Part, Transport
from farandole.strategies.codecs.base import FlatCodec, narrowed, widened

if TYPE_CHECKING:
    from farandole.types import Array


class Sparse(FlatCodec):
    """Everybody gets everybody's numbers and their places (4 bytes each), and adds them up in rank order."""

    even: ClassVar[bool] = True  # all ranks select as many

    def select(self, values: Array) -> Array:
        """The places of the numbers to send, each once, as uint32. What is not finite comes first."""
        raise NotImplementedError

    def add_up(self, values: Array, parts: Sequence[Part], transport: Transport) -> Array:
        dtype = parts[0].buffer.dtype
        places = self.select(values)
        chosen = narrowed(values[places], dtype)
        values[places] -= widened(chosen, dtype)
        payload = np.concatenate([places.view(np.uint8), chosen.view(np.uint8)])
        sizes = self._sizes(len(payload), transport)
        gathered = np.empty(sum(sizes), np.uint8)
        transport.allgather(payload, gathered, sizes)
        self.sent += len(payload) * (transport.size - 1)
        total, begin = np.zeros_like(values), 0
        for nbytes in sizes:
            middle = begin + nbytes // (4 + dtype.itemsize) * 4
            numbers = gathered[middle : begin + nbytes].copy().view(dtype.storage)
            total[gathered[begin:middle].copy().view(np.uint32)] += widened(numbers, dtype)
            begin += nbytes
        return total

    def _sizes(self, own: int, transport: Transport) -> list[int]:
        """The length of each rank's payload."""
        if self.even:
            return [own] * transport.size
        sizes = np.empty(transport.size, np.int64)
        transport.allgather(np.array([own]).view(np.uint8), sizes.view(np.uint8), [sizes.itemsize] * transport.size)
        self.sent += sizes.itemsize * (transport.size - 1)
        return list(map(int, sizes))
