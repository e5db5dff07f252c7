"""Quorums: the ranks that take part in an average, determined by their arrival times. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf
from typing import NamedTuple


class Quorum(NamedTuple):
    """The rule of an average that does not wait for all ranks.

    ``quorum``: the ranks required by an average: a fraction of all ranks if below 1, otherwise
    their number. ``grace``: the seconds for which further ranks may arrive afterwards.
    """

    quorum: float
    grace: float

    def needed(self, size: int) -> int:
        """Return the number of ranks that a job of ``size`` ranks needs for an average."""
        share = ceil(round(self.quorum * size, 9))
        return max(1, min(size, share if self.quorum < 1 else int(self.quorum)))


class Window(NamedTuple):
    """The time from the first arrival for an average to the last one.

    - ``size``: The number of ranks of the job.
    - ``present``: The ranks that have arrived or may still arrive.
    - ``arrived``: The ranks that wait for the average.
    - ``late``: The ranks that were late for an earlier average, to which the grace period does not
      apply.
    - ``complete_at``: The time of the quorum's completion, in seconds; infinite before.
    """

    rule: Quorum
    size: int
    present: frozenset[int]
    arrived: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    complete_at: float = inf

    def arrive(self, rank: int, now: float) -> Window:
        """Return the window after the arrival of ``rank``, even if it had left."""
        return self._replace(
            present=self.present | {rank}, arrived=self.arrived | {rank}
        )._completed(now)

    def come_late(self, rank: int) -> Window:
        """Return the window after the arrival of ``rank`` for an earlier average."""
        return self._replace(present=self.present | {rank}, late=self.late | {rank})

    def leave(self, rank: int, now: float) -> Window:
        """Return the window without ``rank``, which will no longer arrive. A rank that has already
        arrived takes part.
        """
        return self._replace(present=self.present - {rank})._completed(now)

    def next(self) -> Window:
        """Return the window of the next average."""
        return self._replace(arrived=frozenset(), late=frozenset(), complete_at=inf)

    @property
    def missing(self) -> frozenset[int]:
        """The ranks that may still arrive."""
        return self.present - self.arrived

    @property
    def awaited(self) -> frozenset[int]:
        """The ranks to which the grace period applies."""
        return self.missing - self.late if self.complete_at < inf else self.missing

    @property
    def closes_at(self) -> float:
        """The time at which the window closes if no other rank arrives or leaves; minus infinity if
        no other rank can arrive, infinite without a quorum.
        """
        if not self.arrived:
            return inf
        return -inf if not self.awaited else self.complete_at + self.rule.grace

    def _completed(self, now: float) -> Window:
        """Return the window with the time of its quorum. If fewer ranks remain than the quorum, all
        remaining ranks suffice.
        """
        needed = min(self.rule.needed(self.size), max(len(self.present | self.arrived), 1))
        complete = len(self.arrived) >= needed
        return self._replace(complete_at=min(self.complete_at, now)) if complete else self


def window(rule: Quorum, ranks: Iterable[int]) -> Window:
    """Return the first window of a job with these ``ranks``."""
    present = frozenset(ranks)
    return Window(rule, len(present), present)
