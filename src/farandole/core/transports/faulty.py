"""A transport with planned faults, for tests:

    faults = Faults()
    faults.at(rank=1, step=3).kill()
    faults.at(rank=0, step=2).delay(0.5)
    wire = faults.over(wire)

A step is one collective of this rank (on a Link: one ``sendrecv``), counted from 1. Collectives on
splits of the wire also count, and ranks are numbered as in the wrapped wire. The board has no
faults.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from farandole.base.contracts import Link, Parts, Report, Transport
from farandole.base.types import Buffer, ReduceOp

if TYPE_CHECKING:
    from farandole.base.types import Array


class Faults:
    """The planned faults. Every rank needs the same plan, or a copy."""

    def __init__(self) -> None:
        self._planned: dict[tuple[int, int], list[Callable[[], bool]]] = {}

    def at(self, *, rank: int, step: int) -> Fault:
        """Return the moment just before the ``step``-th collective of ``rank``. Several faults
        occur in order. Raises ValueError for a step below 1.
        """
        if step < 1:
            raise ValueError(f"step={step}: steps start at 1")
        return Fault(self._planned.setdefault((rank, step), []))

    def happen(self, rank: int, step: int) -> bool:
        """Apply the faults planned for this moment. Return False if the collective must be
        skipped.
        """
        goes_on = True
        for fault in self._planned.get((rank, step), ()):
            goes_on = fault() and goes_on
        return goes_on

    @overload
    def over(self, wire: Transport) -> Transport: ...
    @overload
    def over(self, wire: Link) -> Link: ...
    def over(self, wire: Any) -> Any:
        """Return ``wire`` with these faults."""
        return _wrap(wire, _Steps(self, wire.rank))


class Fault:
    """The faults of one moment."""

    def __init__(self, planned: list[Callable[[], bool]]) -> None:
        self._planned = planned

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the process of this rank with a signal."""

        def fault() -> bool:
            os.kill(os.getpid(), number)
            return True

        self._planned.append(fault)

    def raise_(self, error: BaseException) -> None:
        """Raise ``error`` in the call."""

        def fault() -> bool:
            raise error

        self._planned.append(fault)

    def delay(self, seconds: float) -> None:
        """Delay the rank by ``seconds``."""

        def fault() -> bool:
            time.sleep(seconds)
            return True

        self._planned.append(fault)

    def drop(self) -> None:
        """Skip the collective. On a Transport the call returns while the other ranks wait for this
        one; on a Link the messages are lost.
        """
        self._planned.append(lambda: False)


class _Steps:
    """Counts the collectives of one rank."""

    def __init__(self, faults: Faults, rank: int) -> None:
        self.faults = faults
        self.rank = rank
        self.done = 0

    def next(self) -> bool:
        self.done += 1
        return self.faults.happen(self.rank, self.done)


def _wrap(wire: Any, steps: _Steps) -> Any:
    return _FaultyTransport(wire, steps) if hasattr(wire, "allreduce") else _FaultyLink(wire, steps)


class _Faulty:
    """The methods that both kinds of wrappers forward."""

    def __init__(self, wire: Any, steps: _Steps) -> None:
        self._wire = wire
        self._steps = steps
        self.rank: int = wire.rank
        self.size: int = wire.size
        self.board = wire.board

    def split(self, ranks: Sequence[int]) -> Any:
        part = self._wire.split(ranks)
        return None if part is None else _wrap(part, self._steps)

    def report_waits(self, report: Report) -> None:
        self._wire.report_waits(report)

    def abort(self, why: str) -> None:
        self._wire.abort(why)

    def close(self) -> None:
        self._wire.close()


class _FaultyLink(_Faulty):
    def __init__(self, wire: Link, steps: _Steps) -> None:
        super().__init__(wire, steps)
        self.ahead: int = wire.ahead

    def sendrecv(self, send: Array | None, dst: int, recv: Array | None, src: int) -> None:
        self._wire.sendrecv(send if self._steps.next() else None, dst, recv, src)


class _FaultyTransport(_Faulty):
    def __init__(self, wire: Transport, steps: _Steps) -> None:
        super().__init__(wire, steps)

    def allocate(self, nbytes: int) -> Array:
        memory: Array = self._wire.allocate(nbytes)
        return memory

    def report_parts(self, report: Parts | None) -> None:
        self._wire.report_parts(report)

    def allreduce(self, buffers: Sequence[Buffer], op: ReduceOp, scale: float = 1.0) -> None:
        if self._steps.next():
            self._wire.allreduce(buffers, op, scale)

    def allgather(self, send: Array, receive: Array, counts: Sequence[int]) -> None:
        if self._steps.next():
            self._wire.allgather(send, receive, counts)

    def broadcast(self, data: Array, root: int) -> None:
        if self._steps.next():
            self._wire.broadcast(data, root)

    def alltoall(
        self, send: Array, send_counts: Sequence[int], receive: Array, receive_counts: Sequence[int]
    ) -> None:
        if self._steps.next():
            self._wire.alltoall(send, send_counts, receive, receive_counts)

    def reducescatter(
        self, buffer: Buffer, counts: Sequence[int], op: ReduceOp, scale: float = 1.0
    ) -> None:
        if self._steps.next():
            self._wire.reducescatter(buffer, counts, op, scale)

    def barrier(self) -> None:
        if self._steps.next():
            self._wire.barrier()
