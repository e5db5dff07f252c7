"""Several hosts: every local rank carries its own slice between them.

An allreduce is a reduce-scatter in shared memory, then an allreduce of each slice among the ranks that hold it (one
per host, all at the same time), then an all-gather in shared memory; see Horovod's torus allreduce and Cho et al.,
"BlueConnect" (MLSys 2019). A composition of transports, not a kind of one: any two will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from farandole.collectives import kernels
from farandole.contracts import Report, Transport
from farandole.types import Buffer, DType, ReduceOp

if TYPE_CHECKING:
    from farandole.types import Array

_NARROW = (DType.UINT8, DType.INT8, DType.INT16, DType.INT32)
SMALL = 64 << 10  # bytes up to which one exchange among all is quicker than three


class Hierarchical:
    """A Transport over three: ``flat`` joins all ranks; ``local`` those of this host; ``cross`` one of each host, those
    with this rank's index on its host. All hosts have as many ranks. All but allreduce goes over ``flat``."""

    def __init__(self, flat: Transport, local: Transport, cross: Transport, hosts: Sequence[Sequence[int]]) -> None:
        """``hosts``: the ranks of each host."""
        self._neighbours = next(host for host in hosts if flat.rank in host)
        self._counterparts = [host[local.rank] for host in hosts]
        self.rank, self.size = flat.rank, flat.size
        self.board = flat.board
        self.flat, self.local, self.cross = flat, local, cross
        self.allgather, self.broadcast, self.alltoall = flat.allgather, flat.broadcast, flat.alltoall
        self.reducescatter, self.barrier = flat.reducescatter, flat.barrier

    def allocate(self, nbytes: int) -> Array:
        """Plain memory: slices are staged on the way out of the host anyway."""
        return np.zeros(nbytes, np.uint8)

    def allreduce(self, buffers: Sequence[Buffer], op: ReduceOp, scale: float = 1.0) -> None:
        total = sum(buffer.data.nbytes for buffer in buffers)
        if total <= SMALL:
            self.flat.allreduce(buffers, op, scale)
            return
        dtype = buffers[0].dtype
        whole = buffers[0] if len(buffers) == 1 else _joined(buffers, dtype)
        if dtype.is_half:  # partial sums stay in float32 all the way
            wide = kernels.widen(whole.data, dtype)
            self._reduce(Buffer(wide, wide, DType.FLOAT32), op, scale)
            kernels.narrow_into(whole.out, wide, dtype)
        elif scale != 1.0 and dtype in _NARROW:  # an average must not overflow on the way
            wide = whole.data.astype(np.int64)
            self._reduce(Buffer(wide, wide, DType.INT64), op, scale)
            np.copyto(whole.out, wide, casting="unsafe")
        else:
            self._reduce(whole, op, scale)
        if whole is not buffers[0]:
            _deal_out(whole.out, buffers)

    def _reduce(self, whole: Buffer, op: ReduceOp, scale: float) -> None:
        counts = kernels.shares(len(whole.data), self.local.size)
        slice_ = np.empty(counts[self.local.rank], whole.data.dtype)
        self.local.reducescatter(Buffer(whole.data, slice_, whole.dtype), counts, op)
        self.cross.allreduce([Buffer(slice_, slice_, whole.dtype)], op, scale)
        sizes = [count * whole.dtype.itemsize for count in counts]
        self.local.allgather(slice_.view(np.uint8), whole.out.view(np.uint8), sizes)

    def split(self, ranks: Sequence[int]) -> Transport | None:
        return self.flat.split(ranks)

    def report_waits(self, report: Report) -> None:
        self.flat.report_waits(report)
        for wire, ranks in ((self.local, self._neighbours), (self.cross, self._counterparts)):
            wire.report_waits(partial(_report_of, report, ranks))

    def abort(self, why: str) -> None:
        for wire in (self.flat, self.local, self.cross):
            wire.abort(why)

    def close(self) -> None:
        for wire in (self.flat, self.local, self.cross):
            wire.close()


def _report_of(report: Report, numbers: Sequence[int], ranks: Sequence[int], seconds: float) -> None:
    report([numbers[rank] for rank in ranks], seconds)


def _joined(buffers: Sequence[Buffer], dtype: DType) -> Buffer:
    whole = np.concatenate([buffer.data for buffer in buffers])
    return Buffer(whole, whole, dtype)


def _deal_out(whole: Array, buffers: Sequence[Buffer]) -> None:
    begin = 0
    for buffer in buffers:
        end = begin + len(buffer.out)
        buffer.out[:] = whole[begin:end]
        begin = end
