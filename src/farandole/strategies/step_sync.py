"""Synchronization of a step's gradients over the ranks, which may have used different optimizers.

Every optimizer has a ballot, in which all ranks announce its gradients before they settle them
together. A rank announces the gradients of all optimizers that it has used before it waits for any
of them. It settles them in the order in which their ballots are completed, which is the same on all
ranks.

If an awaited rank waits in the ballot of an optimizer that this rank has not used, both would wait
forever. This rank therefore announces no gradients in that ballot. It does so only while other
ranks have new gradients and this rank has none of an earlier step: a rank that steps needs the real
announcement of all ranks, and the stall check reports a rank that never announces.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from farandole.core.engine import Engine, Participant


def synchronize(due: Sequence[Participant]) -> None:
    """Announce and settle the gradients of ``due``, and of further optimizers that other ranks have
    used. Collective.
    """
    due = sorted(due, key=lambda one: one.process_set_id)
    engines: list[Engine] = list(dict.fromkeys(one.engine for one in due))
    unused = {engine: _unused(engine, due) for engine in engines}
    if len(due) == 1 and not unused[engines[0]]:  # the common case
        with due[0].lock:
            due[0].announce()
            due[0].settle()
        return
    with ExitStack() as stack:
        points = {
            engine: stack.enter_context(SyncPoint(engine, unused[engine])) for engine in engines
        }
        for one in due:
            points[one.engine].announce(one)
        errors = []
        for point in points.values():
            try:
                point.settle_all()
            # An error concerns the ranks of one set; ranks of the other sets wait for this one.
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _unused(engine: Engine, due: Sequence[Participant]) -> dict[str, Participant]:
    """Return the unused optimizers, by ballot name, for which this rank can announce no
    gradients.
    """
    return {
        other.ballot_name: other
        for other in tuple(engine.participants)
        if other not in due and other.engine is engine and other.can_announce_none()
    }


class SyncPoint:
    """The announcements awaited by a thread on one engine. ``unused``: by ballot name, the
    optimizers for which this rank may have to announce no gradients.
    """

    def __init__(self, engine: Engine, unused: Mapping[str, Participant]) -> None:
        self._engine = engine
        self._unused = dict(unused)
        self._announced: dict[str, Participant] = {}
        self._complete: deque[str] = deque()  # ballots in order of completion
        self._wanted: Sequence[str] = ()  # ballots of ``unused`` in which awaited ranks wait
        self._wake = threading.Event()

    def __enter__(self) -> SyncPoint:
        self._engine.round_listeners.append(self._after_round)
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.round_listeners.remove(self._after_round)
        while self._announced:
            self._announced.popitem()[1].lock.release()

    def announce(self, one: Participant, *, none_here: bool = False) -> None:
        """Announce the gradients of an optimizer, and lock it until they are settled."""
        one.lock.acquire()
        name = one.ballot_name
        self._announced[name] = one
        one.announce(lambda: self._on_complete(name), none_here=none_here)

    def settle_all(self) -> None:
        """Wait for all announcements and settle them. Raises the first error at the end."""
        errors = []
        while self._announced:
            self._engine.drive(self)
            self._announce_unused()
            while self._complete:
                one = self._announced.pop(self._complete.popleft())
                try:
                    one.settle()
                except Exception as error:  # the same on all ranks
                    errors.append(error)
                finally:
                    one.lock.release()
        if errors:
            raise errors[0]

    def done(self) -> bool:
        """Return whether a ballot can be settled or must be announced."""
        return bool(self._complete or self._wanted)

    def sleep(self) -> None:
        """Sleep while another thread runs the rounds."""
        self._wake.clear()
        if not self.done():
            self._wake.wait()

    def _announce_unused(self) -> None:
        wanted = self._wanted
        self._wanted = ()
        for name in wanted:
            one = self._unused.pop(name)
            if one.lock.acquire(blocking=False):  # otherwise its thread will announce
                one.lock.release()
                self.announce(one, none_here=True)

    def _on_complete(self, name: str) -> None:
        self._complete.append(name)
        self._wake.set()

    def _after_round(self) -> None:
        """Look for awaited ranks that wait in other ballots. Called by the thread that runs
        rounds.
        """
        unused = self._unused
        announced = tuple(self._announced)
        self._wanted = self._engine.cross_waits(announced, unused) if unused else ()
        if self._wanted:
            self._wake.set()
