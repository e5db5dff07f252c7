"""The decisions of the coordinator of an elastic job, which the driver carries out. Pure data."""

from __future__ import annotations

import math
from typing import NamedTuple

from farandole.base.durations import readable
from farandole.job.config import Placement
from farandole.job.elastic.changes import HostUpdateResult
from farandole.job.elastic.membership import Member, Membership


class Start(NamedTuple):
    """Start a process. ``placement`` is the expected placement; the first membership may assign
    another.
    """

    member: Member
    placement: Placement


class Stop(NamedTuple):
    """End a process with SIGTERM: its host is no longer used, or the job is over."""

    process: int


class Publish(NamedTuple):
    """Publish the next membership."""

    membership: Membership


class Notify(NamedTuple):
    """Ask the ranks of membership ``number`` to leave it at their next commit."""

    number: int
    change: HostUpdateResult


class Break(NamedTuple):
    """Publish that a member has been lost or has left membership ``number``, so that the other
    ranks do not wait for it there.
    """

    number: int


class Overdue(NamedTuple):
    """Report members for which others have waited ``seconds`` seconds since leaving the membership.

    ``failed``: whether the members count as failed from now on.
    """

    processes: tuple[int, ...]
    seconds: float
    failed: bool


class LeaveOut(NamedTuple):
    """Report that ``hosts`` are excluded from the next membership on, for ``reason``. ``seconds``:
    for each, the time until it is used again; infinite if it is not.
    """

    hosts: tuple[str, ...]
    reason: str
    seconds: tuple[float, ...]

    def describe(self) -> str:
        """Return the report for the user."""
        are = "is" if len(self.hosts) == 1 else "are"
        if max(self.seconds) < math.inf:
            times = " and ".join(dict.fromkeys(map(readable, self.seconds)))
            again = f"{'It' if are == 'is' else 'They'} {are} tried again after {times}."
        else:
            again = "With --cooldown-range 10:100, a host is tried again after some time."
        return (
            f"{' and '.join(self.hosts)} {are} left out: {self.reason}.\n"
            f"Repair the network between these hosts. {again}"
        )


class Finish(NamedTuple):
    """The job has ended successfully."""


class Restart(NamedTuple):
    """Restart all processes, because the hosts have changed and the program cannot adapt.

    ``before``, ``after``: the numbers of ranks.
    """

    before: int
    after: int


class GiveUp(NamedTuple):
    """The job has failed. ``cure`` is advice, or empty."""

    reason: str
    cure: str = ""


Decision = Start | Stop | Publish | Notify | Break | Overdue | LeaveOut | Finish | Restart | GiveUp
