"""The decisions of the coordinator of an elastic job, which the driver carries out. Pure data."""

from __future__ import annotations

from typing import NamedTuple

from farandole.job.config import Placement
from farandole.job.elastic.changes import HostUpdateResult
from farandole.job.elastic.membership import Member, Membership


class Start(NamedTuple):
    """Start a process. ``placement`` is the expected one; the membership that it joins decides."""

    member: Member
    placement: Placement


class Stop(NamedTuple):
    """End a process that is no longer wanted, with SIGTERM."""

    process: int


class Publish(NamedTuple):
    """Publish the next membership."""

    membership: Membership


class Notify(NamedTuple):
    """Ask the ranks of membership ``number`` to leave it at their next commit."""

    number: int
    change: HostUpdateResult


class Break(NamedTuple):
    """Publish that membership ``number`` lost a member, so that no rank waits for it."""

    number: int


class Finish(NamedTuple):
    """The job has ended successfully."""


class GiveUp(NamedTuple):
    """The job has failed. ``cure`` is advice, or empty."""

    reason: str
    cure: str = ""


Decision = Start | Stop | Publish | Notify | Break | Finish | GiveUp
