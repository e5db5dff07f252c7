"""How the ranks of several optimizers wait for each other's gradients, whichever of them each rank
has used.

Every optimizer has a ballot of its own, which all ranks must vote in, and then settle what they
found in it together. A rank votes in those of all the optimizers that it has used before it waits
for any, and settles them in the order in which they were complete: that is the same on all ranks.
If a rank that it waits for waits in another ballot, for an optimizer that was not used here,
neither would ever come: it votes there, too ("nothing here yet"). It does so as long as others have
new gradients, and where none of an earlier step are left: whoever steps needs the own word of all
ranks, and the stall check tells if one does not come.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from farandole.core.engine import Engine
from farandole.strategies.options import GradientOptions


class Voter(Protocol):
    """One optimizer's part in it. ``ballot``: the name of the collective. ``lock``: held from the
    vote to its end. ``due``: gradients wait for it, which ``backward`` (a number) has computed.
    """

    ballot: str
    lock: threading.RLock
    due: bool
    backward: int
    options: GradientOptions

    @property
    def engine(self) -> Engine: ...

    def enters(self) -> bool:
        """Get ready to vote idly; False if another thread is at it, or that would not be true."""

    def vote(self, told: Callable[[], None] | None = None, *, idle: bool = False) -> None:
        """Vote, and return at once; ``told`` is called, by any thread, when all have voted.
        ``idle``: nothing was computed, and more may come.
        """

    def settle(self) -> None:
        """Wait until all have voted, and bring in the gradients. Collective."""


living: weakref.WeakSet[Voter] = weakref.WeakSet()


def settle(due: Sequence[Voter]) -> None:
    """Vote for the optimizers ``due``, and settle them; others as well that other ranks have used.
    Collective.
    """
    # all ranks settle process sets in one order
    due = sorted(due, key=lambda voter: voter.options.process_set.process_set_id or 0)
    engines = list(dict.fromkeys(voter.engine for voter in due))
    idle = [
        other
        for other in tuple(living)
        if other not in due and other.engine in engines and other.enters()
    ]
    if len(due) == 1 and not idle:  # as nearly always
        with due[0].lock:
            due[0].vote()
            due[0].settle()
        return
    turns = [
        Turn(engine, {one.ballot: one for one in idle if one.engine is engine})
        for engine in engines
    ]
    try:
        for voter in due:
            turns[engines.index(voter.engine)].vote(voter)
        errors = []
        for turn in turns:
            try:
                turn.end()
            # of the ranks of one set; those of the others wait for this one
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
    finally:
        for turn in turns:
            turn.close()


class Turn:
    """The ballots that a thread waits for on one engine. ``idle``: by name, those in which it may
    have to vote.
    """

    def __init__(self, engine: Engine, idle: Mapping[str, Voter]) -> None:
        self._engine, self._idle = engine, dict(idle)
        self._voted: dict[str, Voter] = {}
        self._complete: deque[str] = deque()  # in their order
        self._wanted: Sequence[str] = ()  # by ranks that this one waits for
        self._bell = threading.Event()
        engine.watches.append(self._look)

    def vote(self, voter: Voter, *, idle: bool = False) -> None:
        voter.lock.acquire()
        self._voted[voter.ballot] = voter
        voter.vote(lambda: self._ring(voter.ballot), idle=idle)

    def end(self) -> None:
        """Wait for all ballots, and settle them. Raises the first error, when all are done with."""
        errors = []
        while self._voted:
            self._engine.drive(self)
            self._vote_elsewhere()
            while self._complete:
                voter = self._voted.pop(self._complete.popleft())
                try:
                    voter.settle()
                except Exception as error:  # of all ranks alike
                    errors.append(error)
                finally:
                    voter.lock.release()
        if errors:
            raise errors[0]

    def close(self) -> None:
        self._engine.watches.remove(self._look)
        while self._voted:
            self._voted.popitem()[1].lock.release()

    def done(self) -> bool:
        """Is there something to do?"""
        return bool(self._complete or self._wanted)

    def sleep(self) -> None:
        """Wait while another thread runs the rounds."""
        self._bell.clear()
        if not self.done():
            self._bell.wait()

    def _vote_elsewhere(self) -> None:
        wanted, self._wanted = self._wanted, ()
        for name in wanted:
            voter = self._idle.pop(name)
            if voter.lock.acquire(blocking=False):  # else its thread will vote
                voter.lock.release()
                self.vote(voter, idle=True)

    def _ring(self, name: str) -> None:
        self._complete.append(name)
        self._bell.set()

    def _look(self) -> None:
        """A round is over. Called by the thread that runs it."""
        self._wanted = self._engine.wanted(tuple(self._voted), self._idle) if self._idle else ()
        if self._wanted:
            self._bell.set()
