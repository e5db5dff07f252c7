"""What the driver has seen of the ranks, and what it makes of each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from farandole.errors import StalledError, ranks_named
from farandole.job.report.outcome import SILENT, Outcome, tells_of_loss

# an error that ends the job, of a rank that another kept waiting
_STALLED = StalledError.__name__


class Event(NamedTuple):
    """Something that the driver saw: a rank reported its outcome, or its process ended with
    ``code``.
    """

    rank: int
    outcome: Outcome | None = None
    code: int | None = None

    @property
    def bad(self) -> bool:
        return bool(self.code) or (self.outcome is not None and self.outcome.status != "ok")


class Verdict(NamedTuple):
    """Who is the cause (-1: nobody can be named). ``patience``: seconds in which a better cause may
    still show.
    """

    rank: int
    patience: float
    exit_code: int
    message: str
    traceback: str = ""
    # ranks that failed in a way of their own: their last words are worth showing too
    apart: tuple[int, ...] = ()


class RankState(NamedTuple):
    """What is known of one rank. ``order``: when its failure was first seen; ``lost_another``: its
    last lines on stderr tell of the loss of another rank.
    """

    rank: int
    order: int
    outcome: Outcome | None
    code: int | None
    lost_another: bool = False

    @property
    def caught(self) -> bool:
        """Whether its program caught a victim's error, and exited with a code. Its output may tell
        of more.
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
        """The rank that it has lost; -1 if it has not reported any."""
        return -1 if self.outcome is None else self.outcome.lost

    @property
    def kind(self) -> str:
        """The class of the error that it has reported; empty if there is none."""
        return "" if self.outcome is None else self.outcome.kind

    @property
    def host_silent(self) -> bool:
        """Whether its host vanished without a message, as the driver saw it."""
        return self.outcome is not None and SILENT in self.outcome.message

    @property
    def failed_after_loss(self) -> bool:
        """Whether another rank had left before it failed. Its program may have caught that, and
        raised an error of its own, or ended by ``os._exit``, which reports nothing.
        """
        if self.standing == "exit":
            return self.lost_another
        return self.standing == "error" and self.lost >= 0 and self.kind != _STALLED


class Facts(NamedTuple):
    """What is known when a verdict is asked for. ``hosts``: per rank; ``tails``: per rank, its last
    lines on stderr; ``activity``: per rank, its present activity.
    """

    ranks: Sequence[RankState]
    hosts: Sequence[str]
    tails: Mapping[int, str]
    activity: Mapping[int, str]

    @property
    def all_ended(self) -> bool:
        return all(rank.standing != "running" for rank in self.ranks)

    def numbers(self, *standings: str) -> list[int]:
        """Return the numbers of the ranks of these standings."""
        return [rank.rank for rank in self.ranks if rank.standing in standings]

    def places(self, ranks: Sequence[int]) -> str:
        """Return the hosts of ``ranks``, for a message."""
        return ", ".join(dict.fromkeys(self.hosts[rank] for rank in ranks))

    @property
    def caught(self) -> list[int]:
        return [rank.rank for rank in self.ranks if rank.caught]


def rank_states(events: Sequence[Event], tails: Mapping[int, str], size: int) -> list[RankState]:
    """Return what the events say of each of ``size`` ranks."""
    ranks = [RankState(rank, len(events), None, None) for rank in range(size)]
    for order, event in enumerate(events):
        known = ranks[event.rank]
        ranks[event.rank] = known._replace(
            order=min(known.order, order) if event.bad else known.order,
            outcome=known.outcome if event.outcome is None else event.outcome,
            code=known.code if event.code is None else event.code,
        )
    return [rank._replace(lost_another=tells_of_loss(tails.get(rank.rank, ""))) for rank in ranks]


def subject(ranks: Sequence[int]) -> str:
    """Return ``Rank 3`` or ``Ranks 0-2, 5``, as a sentence begins."""
    return ranks_named(ranks).capitalize()
