"""Decides when a job is over, and how: a function from events and times to decisions. No I/O, no
clock of its own.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from farandole.job.launch.explain.events import Event, Verdict

SETTLE = 2.0  # seconds that the rank which caused the failure gets to write its traceback and exit
DRAIN = 0.5  # seconds for which the pipes of a rank that has exited are still read
# seconds in which the others' failures are awaited, so that the message can tell of them
GATHER = 0.2


class JobState(enum.Enum):
    """RUNNING: all is well so far. FAILING: a rank failed, and more may be learnt about why.
    FAILED; ENDED (well).
    """

    RUNNING = enum.auto()
    FAILING = enum.auto()
    FAILED = enum.auto()
    ENDED = enum.auto()


class Phase(NamedTuple):
    """A wait after a failure: ``seconds`` at most."""

    name: str
    seconds: float


class Supervisor:
    """Of a job of ``np`` ranks. Told what was seen (``see``, ``silent``), asked what follows
    (``decide``).
    """

    def __init__(self, np: int) -> None:
        self.events: list[Event] = []
        self.codes: dict[int, int] = {}
        self._np = np
        self._closed: dict[int, float] = {}  # per rank, when the last of its pipes closed
        self._phase = 0
        self._since: float | None = None

    def see(self, event: Event) -> None:
        """A rank reported its outcome, or its process ended."""
        self.events.append(event)
        if event.code is not None:
            self.codes[event.rank] = event.code

    def silent(self, rank: int, now: float) -> None:
        """The last of its pipes has closed."""
        self._closed[rank] = now

    @property
    def failing(self) -> bool:
        """Has any rank failed?"""
        return any(event.bad for event in self.events)

    @property
    def running(self) -> int:
        """Ranks whose processes have not ended."""
        return self._np - len(self.codes)

    def exiting(self, now: float) -> bool:
        """Is a rank about to exit? Its pipes have just closed."""
        return any(
            now < when + DRAIN and rank not in self.codes for rank, when in self._closed.items()
        )

    def decide(self, now: float, verdict: Verdict | None) -> JobState:
        """``verdict``: ``explain`` of the events so far; None while no rank has failed.

        After a failure a better cause gets time to show, the cause to write its traceback and exit,
        its pipes to be read to their end, and the others to fail, too; in this order, each no
        longer than it takes.
        """
        if verdict is None:
            return JobState.RUNNING if self.running else JobState.ENDED
        if self._since is None:
            self._since = now
        phases = (
            Phase("patience", verdict.patience),
            Phase("settle", SETTLE),
            Phase("drain", DRAIN),
            Phase("gather", GATHER),
        )
        while self._phase < len(phases):
            phase = phases[self._phase]
            if now < self._since + phase.seconds and not self._is_over(phase, verdict.rank):
                return JobState.FAILING
            self._phase = self._phase + 1
            self._since = now
        return JobState.FAILED

    def _is_over(self, phase: Phase, cause: int) -> bool:
        if phase.name == "settle":
            return cause < 0 or cause in self.codes
        if phase.name == "drain":
            return cause not in self.codes or cause in self._closed
        return not self.running
