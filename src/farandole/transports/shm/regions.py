"""The in-place path: memory from ``allocate`` is mapped by every rank, and reduced where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from farandole.collectives.kernels import reduce_into
from farandole.transports.shm.arena import Arena
from farandole.types import Buffer, ReduceOp

if TYPE_CHECKING:
    from farandole.types import Array

PLACE = 7 * 64  # in the control page: where the tensors of the current collective stand, as a hash; or 0
_MASK = (1 << 64) - 1
_CHUNK = 512 << 10  # measured: half the time that chunks of 64 KiB take, and larger ones gain nothing


class Regions:
    """Memory that all ranks allocated together."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._regions: list[tuple[int, int, list[Array]]] = []  # address here, bytes, everybody's mapping

    def allocate(self, nbytes: int) -> Array:
        if self._arena.size == 1:
            import numpy as np

            return np.zeros(nbytes, dtype=np.uint8)
        maps = [array for _, array in self._arena.share(nbytes)]
        mine = maps[self._arena.rank]
        self._regions.append((mine.ctypes.data, nbytes, maps))
        return mine

    def allreduce(self, buffers: Sequence[Buffer], op: ReduceOp, scale: float) -> bool:
        """Reduce in place if every rank's tensors stand at the same places of regions; else do nothing."""
        if not self._regions:
            return False
        arena = self._arena
        places = [self._place(buffer) for buffer in buffers]
        mark = 0 if None in places else hash(tuple(places)) & _MASK or 1
        arena.words[arena.rank][PLACE // 8] = mark
        arena.publish()
        arena.await_all(arena.published)
        alike = mark and all(arena.words[peer][PLACE // 8] == mark for peer in arena.others)
        if alike:
            for buffer, place in zip(buffers, places, strict=True):
                if place is not None:
                    self._reduce(buffer, *place, op, scale)
        arena.publish()  # everything is reduced; and the next collective may overwrite the mark
        arena.await_all(arena.published)
        return bool(alike)

    def _place(self, buffer: Buffer) -> tuple[int, int] | None:
        """Which region the tensor stands in, and where; None for ordinary memory."""
        if buffer.data is not buffer.out:
            return None
        address = buffer.data.ctypes.data
        for index, (start, nbytes, _) in enumerate(self._regions):
            if start <= address and address + buffer.data.nbytes <= start + nbytes:
                return index, address - start
        return None

    def _reduce(self, buffer: Buffer, index: int, offset: int, op: ReduceOp, scale: float) -> None:
        """Each rank reduces its share, chunk by chunk while it is in cache, into everybody's memory."""
        arena, dtype = self._arena, buffer.dtype
        count = len(buffer.data)
        maps = [
            mapped[offset : offset + count * dtype.itemsize].view(dtype.storage) for mapped in self._regions[index][2]
        ]
        share = -(-count // arena.size)
        first, last = min(count, arena.rank * share), min(count, (arena.rank + 1) * share)
        step = _CHUNK // dtype.itemsize
        for start in range(first, last, step):
            stop = min(last, start + step)
            parts = [mapped[start:stop] for mapped in maps]
            reduce_into(parts[0], parts, op, dtype, scale)
            for part in parts[1:]:
                part[:] = parts[0]
