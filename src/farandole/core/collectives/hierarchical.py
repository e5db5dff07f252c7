"""Allreduce over several hosts: each byte of a host's sum crosses the network once.

An allreduce is a reduce-scatter in shared memory, then an allreduce of each slice among the ranks
that hold it (one per host, all slices at the same time), then an all-gather in shared memory; see
Horovod's torus allreduce and Cho et al., "BlueConnect" (MLSys 2019). There are as many slices as
ranks on the smallest host; on larger hosts the other ranks take part in shared memory only. This is
a composition of any two transports.

A large allreduce is cut into pieces: while one piece moves between the hosts, on a second thread,
the next one is reduced in shared memory and the previous one is gathered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from farandole.base.contracts import ByteStreams, Parts, Report, Streaming, Transport
from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core import kernels
from farandole.core.collectives.lane import Lane

if TYPE_CHECKING:
    from farandole.base.types import Array

_NARROW = (DType.UINT8, DType.INT8, DType.INT16, DType.INT32, DType.BOOL)
SMALL = 64 << 10  # bytes up to which one exchange among all ranks is faster than three
# bytes in flight between the hosts, for each connection of two ranks
PIECE, LARGEST = 4 << 20, 16 << 20
# pieces of larger buffers: memory and network are seldom idle; more pieces would cost more waits
TURNS = 4
# the parts of an allreduce
SCATTER, NETWORK, GATHER = "SHM_REDUCESCATTER", "NETWORK_ALLREDUCE", "SHM_ALLGATHER"


class Hierarchical:
    """A Transport composed of three.

    ``flat`` connects all ranks; ``local`` the ranks of this host; ``cross`` one rank of each host,
    each with the same index on its host (None if a host has none). All collectives except allreduce
    use ``flat``.
    """

    def __init__(
        self,
        flat: Transport,
        local: Transport,
        cross: Transport | None,
        hosts: Sequence[Sequence[int]],
        streams: int = 1,
    ) -> None:
        """Compose the transports. ``hosts``: the ranks of each host; ``streams``: connections
        between two ranks of different hosts.
        """
        self._streams = streams
        self._neighbours = next(host for host in hosts if flat.rank in host)
        self._slices = slices(hosts)
        self._counterparts = [host[local.rank] for host in hosts] if cross is not None else []
        self.rank = flat.rank
        self.size = flat.size
        self.board = flat.board
        self.flat = flat
        self.local = local
        self.cross = cross
        self._wires = [wire for wire in (flat, local, cross) if wire is not None]
        self._parts: Parts | None = None
        self._slots = [np.empty(0, np.uint8)] * 2
        self._lane = Lane(f"farandole-hosts-{flat.rank}")
        self.allgather = flat.allgather
        self.broadcast = flat.broadcast
        self.alltoall = flat.alltoall
        self.reducescatter = flat.reducescatter
        self.barrier = flat.barrier

    def allocate(self, nbytes: int) -> Array:
        """Return ordinary memory: slices are staged before they leave the host anyway."""
        return np.zeros(nbytes, np.uint8)

    def allreduce(self, buffers: Sequence[Buffer], op: ReduceOp, scale: float = 1.0) -> None:
        total = sum(buffer.data.nbytes for buffer in buffers)
        if total <= SMALL:
            self.flat.allreduce(buffers, op, scale)
            return
        dtype = buffers[0].dtype
        whole = buffers[0] if len(buffers) == 1 else _joined(buffers, dtype)
        if dtype.is_half:  # partial sums remain in float32
            wide = kernels.widen(whole.data, dtype)
            self._reduce(Buffer(wide, wide, DType.FLOAT32), op, scale)
            kernels.narrow_into(whole.out, wide, dtype)
        elif scale != 1.0 and dtype in _NARROW:  # partial sums of an average must not overflow
            wide = whole.data.astype(np.int64)
            self._reduce(Buffer(wide, wide, DType.INT64), op, scale)
            np.copyto(whole.out, wide, casting="unsafe")
        else:
            self._reduce(whole, op, scale)
        if whole is not buffers[0]:
            _deal_out(whole.out, buffers)

    def by_hosts(
        self, whole: Array, dtype: DType, between: Callable[[Array, int, Transport], None]
    ) -> None:
        """Add up all ranks' ``whole`` in place, with ``between`` for the sums across hosts.

        ``between`` gets a slice, its offset in ``whole``, and a transport that connects one rank of
        each host. It must add up the slice in place.
        """
        buffer, cross = Buffer(whole, whole, dtype), self.cross
        with self._together():
            counts, slice_ = self._scatter(buffer, ReduceOp.SUM)
            if cross is not None:
                begin = sum(counts[: self.local.rank])
                self._do(NETWORK, lambda: between(slice_, begin, cross))
            self._gather(buffer, counts, slice_)

    def _reduce(self, whole: Buffer, op: ReduceOp, scale: float) -> None:
        nbytes = min(max(PIECE, whole.data.nbytes // TURNS), LARGEST) * self._streams
        pieces = _pieces(whole, nbytes)
        with self._together():
            if len(pieces) == 1:
                counts, slice_ = self._scatter(whole, op)
                self._between_hosts(slice_, whole.dtype, op, scale)
                self._gather(whole, counts, slice_)
            else:
                self._in_turns(pieces, op, scale)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Abort all wires on an error."""
        try:
            yield
        except BaseException as error:
            # threads waiting on the other wire, including the lane's, are not aware of the error
            # yet
            self.abort(str(error))
            self._lane.finish()
            raise

    def _in_turns(self, pieces: Sequence[Buffer], op: ReduceOp, scale: float) -> None:
        under_way: tuple[Buffer, list[int], Array] | None = None
        for piece in pieces:
            counts, slice_ = self._scatter(piece, op)
            self._lane.start(partial(self._between_hosts, slice_, piece.dtype, op, scale))
            if under_way is not None:
                self._lane.wait()
                self._gather(*under_way)
            under_way = piece, counts, slice_
        assert under_way is not None
        self._lane.wait()
        self._gather(*under_way)

    def _scatter(self, whole: Buffer, op: ReduceOp) -> tuple[list[int], Array]:
        """Reduce within this host. Return the number of elements of every local rank's slice, and
        this rank's slice.
        """
        counts = kernels.shares(len(whole.data), self._slices) + [0] * (
            self.local.size - self._slices
        )
        slice_ = self._slice(counts[0], whole.data.dtype)[: counts[self.local.rank]]
        part = Buffer(whole.data, slice_, whole.dtype)
        self._do(SCATTER, lambda: self.local.reducescatter(part, counts, op))
        return counts, slice_

    def _slice(self, length: int, dtype: np.dtype[Any]) -> Array:
        """Return memory for a slice of ``length`` elements that all ranks of this host can read.

        The memory alternates between two slots; by the time a slot is reused, all ranks have read
        it.
        """
        nbytes = length * dtype.itemsize
        if len(self._slots[0]) < nbytes:
            self._slots = [self.local.allocate(1 << (nbytes - 1).bit_length()) for _ in self._slots]
        self._slots.reverse()
        view: Array = self._slots[0][:nbytes].view(dtype)
        return view

    def _between_hosts(self, slice_: Array, dtype: DType, op: ReduceOp, scale: float) -> None:
        cross = self.cross
        if cross is not None:
            self._do(NETWORK, lambda: cross.allreduce([Buffer(slice_, slice_, dtype)], op, scale))

    def _gather(self, whole: Buffer, counts: Sequence[int], slice_: Array) -> None:
        sizes = [count * whole.dtype.itemsize for count in counts]
        self._do(
            GATHER,
            lambda: self.local.allgather(slice_.view(np.uint8), whole.out.view(np.uint8), sizes),
        )

    def _do(self, part: str, work: Callable[[], None]) -> None:
        """Run one part of an allreduce and report its times."""
        report, begin = self._parts, monotonic()
        work()
        if report is not None:
            report(part, begin, monotonic())

    def split(self, ranks: Sequence[int]) -> Transport | None:
        return self.flat.split(ranks)

    def streams(self) -> ByteStreams:
        """Return streams over ``flat`` (see ``contracts.Streaming``)."""
        return cast(Streaming, self.flat).streams()

    def report_waits(self, report: Report) -> None:
        # one thread may wait for local ranks while another waits for remote ones
        lock = threading.Lock()

        def one_at_a_time(ranks: Sequence[int], seconds: float) -> None:
            with lock:
                report(ranks, seconds)

        self.flat.report_waits(one_at_a_time)
        self.local.report_waits(partial(_report_of, one_at_a_time, self._neighbours))
        if self.cross is not None:
            self.cross.report_waits(partial(_report_of, one_at_a_time, self._counterparts))

    def report_parts(self, report: Parts | None) -> None:
        """See ``contracts.Transport``."""
        self._parts = report

    def abort(self, why: str) -> None:
        for wire in self._wires:
            wire.abort(why)

    def close(self) -> None:
        for wire in self._wires:
            wire.close()
        self._lane.close()


def slices(hosts: Sequence[Sequence[int]]) -> int:
    """Return the number of ranks per host that exchange with other hosts."""
    return min(map(len, hosts))


def _pieces(whole: Buffer, nbytes: int) -> list[Buffer]:
    """Cut ``whole`` into pieces of about ``nbytes`` bytes."""
    count = max(1, whole.data.nbytes // nbytes)
    cuts = np.cumsum([0, *kernels.shares(len(whole.data), count)]).tolist()
    same = whole.out is whole.data
    pieces = []
    for start, end in pairwise(cuts):
        data = whole.data[start:end]
        pieces.append(Buffer(data, data if same else whole.out[start:end], whole.dtype))
    return pieces


def _report_of(
    report: Report, numbers: Sequence[int], ranks: Sequence[int], seconds: float
) -> None:
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
