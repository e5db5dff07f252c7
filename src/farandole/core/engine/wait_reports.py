"""Reports of waiting collectives to the observers."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from farandole.base.contracts import Transport, Waiting
from farandole.base.types import Kind
from farandole.core.engine.handle import Item
from farandole.core.engine.rounds import Rounds
from farandole.core.engine.subscribers import Subscribers
from farandole.errors import StalledError


class WaitReports:
    """The reports of one engine.

    - ``running``: The started collectives, which may wait for other ranks inside the transport.
    - ``posted_seconds``: The total time between this rank's posts and the last rank's posts.
    - ``blocked_seconds``: The total time of the program's past waits for collectives.
    - ``blocked_since``: The beginning of its current wait; 0 without one.
    """

    def __init__(self, transport: Transport, rounds: Rounds, observers: Subscribers) -> None:
        self.running: Sequence[Item] = ()
        self.posted_seconds = self.blocked_seconds = self.blocked_since = 0.0
        self._transport = transport
        self._rounds = rounds
        self._observers = observers
        self._last = monotonic()
        if observers.waiting:
            transport.report_waits(self._held_up)

    def end_block(self, began: float) -> None:
        """Record the end of a wait of the program that began at the time ``began``."""
        self.blocked_since = 0.0
        self.blocked_seconds += monotonic() - began

    def due(self, now: float, interval: float) -> bool:
        """Return whether the last report is at least ``interval`` seconds old; if so, restart the
        interval.
        """
        if now - self._last < interval:
            return False
        self._last = now
        return True

    def report(self, batch: Sequence[Item], now: float) -> None:
        """Report the collectives posted in this round (``batch``) or waiting for agreement.

        Raises StalledError if an observer ends the job.
        """
        items = [
            (item.entry.name, item)
            for item in (*self._rounds.waiting.values(), *batch)
            if item.entry.request.kind is not Kind.JOIN  # a joining rank waits intentionally
        ]
        if not items or not self._observers.waiting:
            return
        absent = self._rounds.missing()
        silent = tuple(
            rank for rank in self._transport.board.missing() if rank != self._transport.rank
        )
        self._notify(
            [
                Waiting(name, now - item.since, absent.get(name, silent) or silent)
                for name, item in items
            ]
        )

    def _held_up(self, ranks: Sequence[int], seconds: float) -> None:
        self._notify(
            [Waiting(item.entry.name, seconds, tuple(ranks), True) for item in self.running]
        )

    def _notify(self, waiting: Sequence[Waiting]) -> None:
        for observer in self._observers.waiting:
            why = observer.waiting(waiting)
            if why:
                self._transport.abort(why)
                missing = (rank for wait in waiting for rank in wait.missing)
                raise StalledError(why, next((self._rounds.called[rank] for rank in missing), -1))
