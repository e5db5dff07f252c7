"""Decisions on when a job is over, and how, as a function of events and times.

No I/O, and no clock.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from farandole.job.launch.explain.events import Event, Verdict

SETTLE = 2.0  # seconds for the rank that caused the failure to write its traceback and exit
DRAIN = 0.5  # seconds for which the pipes of an exited rank are still read
# Seconds to wait for failures of other ranks, so that the message can include them.
GATHER = 0.2


class JobState(enum.Enum):
    """The state of a job.

    RUNNING: no failure so far. FAILING: a rank failed, and the cause may become clearer. FAILED and
    ENDED (successfully) are final.
    """

    RUNNING = enum.auto()
    FAILING = enum.auto()
    FAILED = enum.auto()
    ENDED = enum.auto()


class Phase(NamedTuple):
    """A wait after a failure, for at most ``seconds``."""

    name: str
    seconds: float


class Supervisor:
    """Supervises a job of ``np`` ranks: ``see`` and ``silent`` take observations, ``decide``
    returns the state.
    """

    def __init__(self, np: int) -> None:
        self.events: list[Event] = []
        self.codes: dict[int, int] = {}
        self._np = np
        self._closed: dict[int, float] = {}  # per rank, the time at which its last pipe closed
        self._phase = 0
        self._since: float | None = None

    def see(self, event: Event) -> None:
        """Record that a rank reported its outcome or that its process ended."""
        self.events.append(event)
        if event.code is not None:
            self.codes[event.rank] = event.code

    def silent(self, rank: int, now: float) -> None:
        """Record that the last pipe of a rank has closed."""
        self._closed[rank] = now

    @property
    def failing(self) -> bool:
        """True if any rank has failed."""
        return any(event.bad for event in self.events)

    @property
    def running(self) -> int:
        """The number of ranks whose processes have not ended."""
        return self._np - len(self.codes)

    def exiting(self, now: float) -> bool:
        """Return whether a rank is probably exiting: its pipes have just closed."""
        return any(
            now < when + DRAIN and rank not in self.codes for rank, when in self._closed.items()
        )

    def decide(self, now: float, verdict: Verdict | None) -> JobState:
        """Return the job's state. ``verdict`` is ``explain`` of the events so far; None without a
        failure.

        After a failure the job waits, in this order and no longer than needed, for a better cause
        to show, for the causing rank to write its traceback and exit, for its pipes to drain, and
        for the other ranks to fail.
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
