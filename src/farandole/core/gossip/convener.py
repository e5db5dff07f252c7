"""Averages among the ranks that arrive in time: one rank convenes, the others connect to it.

A rank sends the changes of its weights relative to the values that it received last. The convener,
in separate threads, closes an average when the quorum is complete and the grace period is over (see
``quorum``), applies the mean change to the values, and sends the values to the waiting ranks.

Ranks count their averages. A rank that arrives after an average has closed receives the present
values immediately, and its changes are included in the next average. It therefore never waits for a
rank that may be waiting for it in a collective or in the average of another optimizer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.base.log import logger
from farandole.core.gossip.partner import SILENCE, Partner
from farandole.core.gossip.quorum import Quorum, window
from farandole.core.ps.wire import Message, receive, receive_into, send
from farandole.net.handshake import Session
from farandole.net.liveness import await_answer, silent

if TYPE_CHECKING:
    from farandole.base.types import Array
    from farandole.core.gossip.peer_group import PeerServer

# values, mean changes -> new values
Combine = Callable[[Sequence["Array"], Sequence["Array"]], Sequence["Array"]]
LATE = 60.0  # seconds without a quorum before a warning
GREETING = 60.0  # seconds for the first message of all ranks
LAST = 5.0  # seconds for the last answers when the convener ends


class Contribution(NamedTuple):
    """The changes of a rank from ``steps`` steps."""

    rank: int
    steps: int
    changes: Sequence[Array]


class Convener:
    """The values of one optimizer, on the rank that convenes the averages.

    - ``name``: The name of the averages, the same on all ranks.
    - ``ranks``: The ranks' numbers in the job.
    - ``rule``: The quorum and its grace period.
    - ``values``: One-dimensional arrays, the same on all ranks.
    - ``changes``: Arrays with the lengths and dtypes of a rank's changes.
    - ``combine``: Returns the next values, as new arrays.

    Attributes: ``number`` of averages; ``attendance``: the total number of ranks in them.
    """

    def __init__(
        self,
        server: PeerServer,
        name: str,
        ranks: Sequence[int],
        rule: Quorum,
        values: Sequence[Array],
        changes: Sequence[Array],
        combine: Combine,
    ) -> None:
        self.name = name
        self.number = self.attendance = 0
        self._server = server
        self._combine = combine
        self._forms = [(array.size, array.dtype) for array in changes]
        self._values = list(values)  # replaced by each average, never changed
        self._window = window(rule, ranks)
        self._given: list[Contribution] = []
        self._greeted = {server.rank}
        self._answering = 0
        self._closing = False
        self._changed = threading.Condition()
        server.add(self)

    def attend(self, turn: int, steps: int, changes: Sequence[Array]) -> Sequence[Array]:
        """Contribute this rank's changes to the next average, and return the resulting values,
        which the caller must not change. ``turn``: the number of this rank's previous averages.
        """
        return self._average(turn, Contribution(self._server.rank, steps, changes))

    def step_away(self) -> None:
        """Stop averages from waiting for this rank until it attends again."""
        self.look_for(self._server.rank)

    def settle(self) -> Sequence[Array]:
        """Return the values including all changes of late ranks."""
        with self._changed:
            if self._given:
                self._finish()
            return self._values

    def await_all(self) -> None:
        """Wait for the first message of all ranks; silent ranks are skipped."""
        with self._changed:
            everyone = self._window.present
            self._changed.wait_for(lambda: everyone <= self._greeted, GREETING)
            for rank in everyone - self._greeted:
                self._window = self._window.leave(rank, time.monotonic())

    def look_for(self, rank: int) -> None:
        """Skip a rank that has closed its connection, until it attends again."""
        with self._changed:
            self._window = self._window.leave(rank, time.monotonic())
            self._changed.notify_all()

    def answer(self, session: Session, message: Message) -> None:
        """Answer a message of another rank."""
        rank, steps = int(message["rank"]), int(message["steps"])
        with self._changed:
            self._greeted.add(rank)
            self._changed.notify_all()
        send(session, {"agreed": True})
        if not steps:
            if message.get("away"):
                self.look_for(rank)
            return
        changes = [np.empty(size, dtype) for size, dtype in self._forms]
        with self._changed:
            self._answering += 1
        try:
            session.sock.settimeout(SILENCE)
            if receive(session) is None:
                return
            receive_into(session, changes, lambda: _check(session))
            values = self._average(int(message["turn"]), Contribution(rank, steps, changes))
            send(session, {}, values, lambda: _check(session))
            session.sock.settimeout(None)
        finally:
            with self._changed:
                self._answering -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Close the current average, and stop convening."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._answering, LAST)
        self._server.remove(self)
        if self.number:
            logger.info(
                "rank %d: %d averages by quorum, of %.1f ranks on average",
                self._server.rank,
                self.number,
                self.attendance / self.number,
            )

    def _average(self, turn: int, given: Contribution) -> Sequence[Array]:
        with self._changed:
            number = self.number
            self._given.append(given)
            if turn < number:
                self._window = self._window.come_late(given.rank)
                self._changed.notify_all()
                return self._values
            self._window = self._window.arrive(given.rank, time.monotonic())
            self._changed.notify_all()
            warn_at = time.monotonic() + LATE
            while self.number == number:
                now = time.monotonic()
                due = self._window.closes_at
                if self._closing or now >= due:
                    self._finish()
                    break
                if now >= warn_at:
                    warn_at = now + LATE
                    self._warn()
                until = due if isfinite(due) else warn_at
                self._changed.wait(min(until, warn_at) - now)
            return self._values

    def _finish(self) -> None:
        """End the average. Contributions are summed in the order of ranks."""
        self._given.sort(key=lambda given: given.rank)
        total = sum(given.steps for given in self._given)
        means = []
        for place, (size, dtype) in enumerate(self._forms):
            mean = np.zeros(size, dtype)
            for _, steps, changes in self._given:
                mean += changes[place] * dtype.type(steps / total)
            means.append(mean)
        self._values = list(self._combine(self._values, means))
        self.number += 1
        self.attendance += len({given.rank for given in self._given})
        self._given = []
        self._window = self._window.next()
        self._changed.notify_all()

    def _warn(self) -> None:
        logger.warning(
            "%d of %d ranks wait to average weights, and the quorum is %d: rank%s missing. Lower"
            " the quorum, or look for the cause on the missing ranks",
            len(self._window.arrived),
            self._window.size,
            self._window.rule.needed(self._window.size),
            "s " + ", ".join(map(str, sorted(self._window.missing))) + " are"
            if len(self._window.missing) > 1
            else f" {min(self._window.missing)} is",
        )


class ConvenerLink(Partner):
    """The convener, as seen by another rank. ``name``: the name of the averages; ``values``: arrays
    with the lengths and dtypes of the convener's values.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        address: dict[str, Any],
        caller: PeerServer,
        values: Sequence[Array],
    ) -> None:
        super().__init__(rank, address, caller)
        self._name = name
        self._values = [np.empty_like(array) for array in values]

    def greet(self) -> None:
        """Send the first message. Raises PeerLostError if the convener is lost."""
        if self.reachable():
            self.agrees(self._message(0, 0))

    def attend(self, turn: int, steps: int, changes: Sequence[Array]) -> Sequence[Array] | None:
        """Contribute this rank's changes to the next average, and return the resulting values,
        which the next call overwrites. None if the convener has ended or does not answer; then the
        changes are not used.

        ``turn``: the number of this rank's previous averages. Raises PeerLostError if the convener
        is lost.
        """
        if not self.reachable() or not self.agrees(self._message(turn, steps)):
            return None
        met = self._answered(lambda session: self._met(session, changes))
        return self._values if met else None

    def step_away(self) -> None:
        """Stop averages from waiting for this rank until it attends again."""
        if self.reachable():
            self.agrees({**self._message(0, 0), "away": True})

    def settle(self) -> Sequence[Array]:
        """Return no values: only the convener has the newest values."""
        return ()

    def _message(self, turn: int, steps: int) -> Message:
        rank = self._caller.rank
        return {"group": self._name, "rank": rank, "turn": turn, "steps": steps}

    def _met(self, session: Session, changes: Sequence[Array]) -> Message | None:
        """Send the changes, and wait for the values while the convener's host answers."""
        session.sock.settimeout(SILENCE)
        send(session, {}, changes, lambda: _check(session))
        while True:
            try:
                await_answer(session.sock, SILENCE)
                break
            except TimeoutError:
                _check(session)
        answer = receive(session)
        if answer is not None:
            receive_into(session, self._values, lambda: _check(session))
            session.sock.settimeout(None)
        return answer


def _check(session: Session) -> None:
    """Raise TimeoutError if the other end's host no longer answers."""
    if silent(session.sock):
        raise TimeoutError(f"{session.peer} does not answer")
