"""The base of codecs that send some of the values, with their indices."""

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


_MAX_ELEMENTS = 1 << 32  # elements whose indices fit in 4 bytes


class Sparse(Pushable):
    """A codec in which all ranks receive the values and indices (4 bytes each) of all ranks, and
    add them up in rank order.
    """

    even: ClassVar[bool] = True  # whether all ranks select the same number of elements

    def select(self, values: Array) -> Array:
        """Return the indices of the values to send, without repetition, as uint32. Values that are
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
        if len(values) > _MAX_ELEMENTS:
            raise ValueError(
                f"the codec {self.name} sends indices as 32-bit integers, but a parameter has"
                f" {len(values)} elements, more than {_MAX_ELEMENTS}. Use a different codec for it"
            )
        indices = self.select(values)
        chosen = narrowed(values[indices], dtype)
        values[indices] -= widened(chosen, dtype)
        return np.concatenate([indices.view(np.uint8), chosen.view(np.uint8)])

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
    """Add a payload to ``total``. Raises ValueError or IndexError for a malformed payload."""
    middle = len(payload) // (4 + dtype.itemsize) * 4
    numbers = payload[middle:].copy().view(dtype.storage)
    total[payload[:middle].copy().view(np.uint32)] += widened(numbers, dtype)
