"""``over(wire)``: returns a Transport unchanged; adds rings and trees to a Link."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np

from farandole.base.contracts import ByteStreams, Link, Parts, Report, Streaming, Transport
from farandole.base.types import Buffer, ReduceOp
from farandole.core import kernels
from farandole.core.collectives import direct, doubling, ring, tree
from farandole.core.collectives.flat import Flat, Scratch
from farandole.errors import RequestError

if TYPE_CHECKING:
    from farandole.base.types import Array

SMALL = 1 << 18  # bytes up to which a message may go to all ranks directly
# bytes that 1 Gbit/s sends in 0.1 ms, the latency between programs on neighbouring hosts
LATENCY = 12 << 10
MESSAGE = 2 << 10  # bytes whose sending costs as much as the system calls of a message


@lru_cache
def cheapest(nbytes: int, size: int) -> ModuleType:
    """Return the cheapest algorithm for an allreduce of ``nbytes`` among ``size`` ranks. Pure.

    The cost model is from Thakur, Rabenseifner and Gropp (see ``doubling``): the number of steps
    times the latency, plus the bytes that a rank sends, both in bytes. Above ``SMALL`` only the
    ring is used, which reduces while it receives.
    """
    pairs = size.bit_length() - 1
    steps = pairs if size == 1 << pairs else pairs + 2
    costs: dict[ModuleType, float] = {ring: 2 * (size - 1) * (LATENCY + nbytes / size)}
    if nbytes <= SMALL:
        costs[doubling] = steps * (LATENCY + max(nbytes, MESSAGE))
        costs[direct] = LATENCY + (size - 1) * max(nbytes, MESSAGE)
    return min(reversed(costs), key=costs.__getitem__)


def over(wire: Link | Transport) -> Transport:
    """Return the collectives of ``wire``, a Link or a Transport."""
    return cast(Transport, wire) if hasattr(wire, "allreduce") else LinkTransport(wire)


class LinkTransport:
    """A Transport over a Link. It selects algorithms by size; all ranks have the same sizes, so
    they select the same algorithm.
    """

    def __init__(self, link: Link) -> None:
        self.rank = link.rank
        self.size = link.size
        self.board = link.board
        self.link = link
        self._scratch = Scratch()

    def allocate(self, nbytes: int) -> Array:
        """Return ordinary memory: a link copies anyway."""
        return np.zeros(nbytes, np.uint8)

    def allreduce(self, buffers: Sequence[Buffer], op: ReduceOp, scale: float = 1.0) -> None:
        if not buffers:
            return
        dtype = buffers[0].dtype
        if self.size == 1:
            for buffer in buffers:
                kernels.reduce_into(buffer.out, [buffer.data], op, dtype, scale)
            return
        data, out = (
            Flat([buffer.data for buffer in buffers]),
            Flat([buffer.out for buffer in buffers]),
        )
        if data.size:
            algorithm = cheapest(data.size * data.dtype.itemsize, self.size)
            algorithm.allreduce(self.link, data, out, self._scratch, dtype, op, scale)

    def allgather(self, send: Array, receive: Array, counts: Sequence[int]) -> None:
        parts = np.split(receive, np.cumsum(counts)[:-1])
        parts[self.rank][:] = send
        if self.size == 1:
            return
        if len(receive) <= SMALL:
            direct.exchange(self.link, [send] * self.size, parts)
        else:
            ring.allgather(self.link, parts)

    def broadcast(self, data: Array, root: int) -> None:
        if self.size == 1 or not len(data):
            return
        if self.size == 2 or len(data) <= max(SMALL, tree.CHUNK):
            tree.broadcast(self.link, data, root)
        else:
            tree.pipelined_broadcast(self.link, data, root)

    def alltoall(
        self, send: Array, send_counts: Sequence[int], receive: Array, receive_counts: Sequence[int]
    ) -> None:
        sends = np.split(send, np.cumsum(send_counts)[:-1])
        receives = np.split(receive, np.cumsum(receive_counts)[:-1])
        receives[self.rank][:] = sends[self.rank]
        if self.size > 1:
            direct.exchange(self.link, sends, receives)

    def reducescatter(
        self, buffer: Buffer, counts: Sequence[int], op: ReduceOp, scale: float = 1.0
    ) -> None:
        data, out, dtype = buffer
        if self.size == 1:
            kernels.reduce_into(out, [data], op, dtype, scale)
        elif data.nbytes <= SMALL:
            direct.reducescatter(self.link, data, out, counts, dtype, op, scale)
        else:
            ring.reducescatter(
                self.link, Flat([data]), Flat([out]), counts, self._scratch, dtype, op, scale
            )

    def barrier(self) -> None:
        tree.barrier(self.link)

    def split(self, ranks: Sequence[int]) -> Transport | None:
        """Return a transport among ``ranks``; None on a rank that is not among them."""
        link = self.link.split(ranks)
        return None if link is None else LinkTransport(link)

    def streams(self) -> ByteStreams:
        """Return the link's streams (see ``contracts.Streaming``). Raises RequestError if the link
        has none.
        """
        if isinstance(self.link, Streaming):
            return self.link.streams()
        raise RequestError(
            f"this transport ({type(self.link).__name__}) does not support messages between ranks"
            " (send, recv): use --transport auto (FARANDOLE_TRANSPORT)"
        )

    def report_waits(self, report: Report) -> None:
        self.link.report_waits(report)

    def report_parts(self, report: Parts | None) -> None:
        """Ignore the request: a single link has no parts."""

    def abort(self, why: str) -> None:
        self.link.abort(why)

    def close(self) -> None:
        self.link.close()
