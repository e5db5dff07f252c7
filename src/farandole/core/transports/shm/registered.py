"""The in-place path: every rank maps the memory from ``allocate``, so its tensors are reduced and
read without copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core.kernels import quiet, reducer
from farandole.core.transports.shm import memory
from farandole.core.transports.shm.segment import Segment

if TYPE_CHECKING:
    from farandole.base.types import Array

# offset in the control page: a hash of the places of the current collective's tensors; 0: none
PLACE = 7 * 64
_MASK = (1 << 64) - 1
_CHUNK = 256 << 10  # bytes per rank; the chunks stay in the L2 cache during the reduction


class RegisteredBuffer(NamedTuple):
    """Memory from ``allocate``. ``maps``: each rank's buffer as mapped by this process, by rank."""

    address: int
    nbytes: int
    maps: list[Array]


class RegisteredBuffers:
    """Memory that all ranks allocated together."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._registered: list[RegisteredBuffer] = []

    def allocate(self, nbytes: int) -> Array:
        if self._segment.size == 1:
            import numpy as np

            return np.zeros(nbytes, dtype=np.uint8)
        maps = [array for _, array in self._segment.share(nbytes)]
        mine = maps[self._segment.rank]
        self._registered.append(RegisteredBuffer(mine.ctypes.data, nbytes, maps))
        return mine

    def allreduce(self, buffers: Sequence[Buffer], op: ReduceOp, scale: float) -> bool:
        """Reduce in place if every rank's tensors are at the same places in registered buffers;
        else do nothing.

        Return whether the tensors were reduced.
        """
        if not self._registered:
            return False
        segment = self._segment
        places = [
            self._place(buffer.data) if buffer.data is buffer.out else None for buffer in buffers
        ]
        alike = self._agree(places)
        if alike:
            for buffer, place in zip(buffers, places, strict=True):
                if place is not None:
                    self._reduce(buffer, *place, op, scale)
        segment.publish()  # the reduction is complete; the next collective may overwrite the hash
        segment.await_all(segment.published)
        return alike

    def peer_views(self, array: Array) -> list[Array] | None:
        """Return each rank's registered memory from the place of ``array`` on, by rank.

        None if the ranks' arrays are not at the same place. Collective: returns once all ranks have
        called this. The ranks must end the collective together.
        """
        place = self._place(array) if self._registered else None
        if not self._agree([place]) or place is None:
            return None
        index, offset = place
        return [mapped[offset:] for mapped in self._registered[index].maps]

    def _agree(self, places: Sequence[tuple[int, int] | None]) -> bool:
        """Return whether these tensors are at the same registered places on all ranks."""
        segment = self._segment
        mark = 0 if None in places else hash(tuple(places)) & _MASK or 1
        segment.words[segment.rank][PLACE // 8] = mark
        segment.publish()
        segment.await_all(segment.published)
        return bool(mark) and all(
            segment.words[peer][PLACE // 8] == mark for peer in segment.others
        )

    def _place(self, array: Array) -> tuple[int, int] | None:
        """Return the index of the registered buffer with the tensor, and the offset there; None for
        ordinary memory.
        """
        address = array.ctypes.data
        for index, (start, nbytes, _) in enumerate(self._registered):
            if start <= address and address + array.nbytes <= start + nbytes:
                return index, address - start
        return None

    def _reduce(self, buffer: Buffer, index: int, offset: int, op: ReduceOp, scale: float) -> None:
        dtype, nbytes = buffer.dtype, len(buffer.data) * buffer.dtype.itemsize
        maps = [
            mapped[offset : offset + nbytes].view(dtype.storage)
            for mapped in self._registered[index].maps
        ]
        with quiet():
            reduce_shares(self._segment, maps, op, dtype, scale)


def reduce_shares(
    segment: Segment, maps: Sequence[Array], op: ReduceOp, dtype: DType, scale: float
) -> None:
    """Reduce this rank's share of all ranks' arrays into all of them.

    It works in chunks that stay in the cache, and writes its own array first.
    """
    me, count = segment.rank, len(maps[0])
    share = memory.round_up(-(-count // segment.size), 64)
    first, last = min(count, me * share), min(count, (me + 1) * share)
    step = _CHUNK // dtype.itemsize
    reduce = reducer(op, dtype, scale)
    nearest = me if me < 2 else 0  # a reducer may write to one of the first two parts
    for start in range(first, last, step):
        stop = min(last, start + step)
        parts = [mapped[start:stop] for mapped in maps]
        result = parts[nearest]
        reduce(result, parts)
        for part in parts:
            if part is not result:
                part[:] = result
