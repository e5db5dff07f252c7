"""Events that the driver has observed, and the resulting state of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from farandole.errors import StalledError, ranks_named
from farandole.job.report.outcome import SILENT, Outcome, reports_loss

# An error of a rank that ends the job because another rank kept it waiting.
_STALLED = StalledError.__name__


class Event(NamedTuple):
    """An event that the driver observed: a rank reported its outcome, or its process ended with
    ``code``.
    """

    rank: int
    outcome: Outcome | None = None
    code: int | None = None

    @property
    def bad(self) -> bool:
        return bool(self.code) or (self.outcome is not None and self.outcome.status != "ok")


class Verdict(NamedTuple):
    """The cause of a failure: ``rank`` is -1 if unknown. ``patience``: seconds in which a better
    cause may still appear.
    """

    rank: int
    patience: float
    exit_code: int
    message: str
    traceback: str = ""
    # Ranks that failed in their own way, whose last output should be shown too.
    apart: tuple[int, ...] = ()
    host_lost: bool = False  # the launcher reported the loss of the rank's host


class RankState(NamedTuple):
    """The state of one rank.

    ``order`` is when its failure was first seen. ``lost_another``: its last lines on stderr report
    the loss of another rank.
    """

    rank: int
    order: int
    outcome: Outcome | None
    code: int | None
    lost_another: bool = False

    @property
    def caught(self) -> bool:
        """True if the program caught a victim's error and exited with a code. Its output may
        say more.
        """
        return (
            self.standing == "victim" and self.outcome is not None and self.outcome.status == "ok"
        )

    @property
    def standing(self) -> str:
        if self.outcome is not None and self.outcome.status != "ok":
            return self.outcome.status
        if self.code is None:
            return "running"
        if self.code < 0:
            return "signal"
        if self.code and self.outcome is not None and self.outcome.kind:
            return "victim"  # see caught
        return "exit" if self.code else "finished"

    @property
    def lost(self) -> int:
        """The rank that it has reported as lost; -1 for none."""
        return -1 if self.outcome is None else self.outcome.lost

    @property
    def kind(self) -> str:
        """The class of the error that it has reported; empty for none."""
        return "" if self.outcome is None else self.outcome.kind

    @property
    def host_silent(self) -> bool:
        """True if the driver reported that the rank's host vanished silently."""
        return self.outcome is not None and SILENT in self.outcome.message

    @property
    def failed_after_loss(self) -> bool:
        """True if another rank had left before this one failed.

        The program may have caught the loss and raised its own error, or ended by ``os._exit``,
        which reports nothing.
        """
        if self.standing == "exit":
            return self.lost_another
        return self.standing == "error" and self.lost >= 0 and self.kind != _STALLED


class Facts(NamedTuple):
    """The facts for a verdict.

    ``hosts``, ``tails`` (last lines on stderr) and ``activity`` (current activity) are per rank.
    """

    ranks: Sequence[RankState]
    hosts: Sequence[str]
    tails: Mapping[int, str]
    activity: Mapping[int, str]

    @property
    def all_ended(self) -> bool:
        return all(rank.standing != "running" for rank in self.ranks)

    def numbers(self, *standings: str) -> list[int]:
        """Return the numbers of the ranks with these standings."""
        return [rank.rank for rank in self.ranks if rank.standing in standings]

    def places(self, ranks: Sequence[int]) -> str:
        """Return the hosts of ``ranks``, for a message."""
        return ", ".join(dict.fromkeys(self.hosts[rank] for rank in ranks))

    @property
    def caught(self) -> list[int]:
        return [rank.rank for rank in self.ranks if rank.caught]


def rank_states(events: Sequence[Event], tails: Mapping[int, str], size: int) -> list[RankState]:
    """Return the state of each of ``size`` ranks after the events."""
    ranks = [RankState(rank, len(events), None, None) for rank in range(size)]
    for order, event in enumerate(events):
        known = ranks[event.rank]
        ranks[event.rank] = known._replace(
            order=min(known.order, order) if event.bad else known.order,
            outcome=known.outcome if event.outcome is None else event.outcome,
            code=known.code if event.code is None else event.code,
        )
    return [rank._replace(lost_another=reports_loss(tails.get(rank.rank, ""))) for rank in ranks]


def subject(ranks: Sequence[int]) -> str:
    """Return ``Rank 3`` or ``Ranks 0-2, 5``, capitalized for the beginning of a sentence."""
    return ranks_named(ranks).capitalize()
