"""The decisions of the coordinator of an elastic job, which the driver carries out. Pure data."""

from __future__ import annotations

from typing import NamedTuple

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
    """Report that ``hosts`` are excluded from the next membership on, for ``reason``."""

    hosts: tuple[str, ...]
    reason: str


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
