"""Detects ranks that call unnamed collectives in different orders, from the lines of their calls.

Unnamed collectives pair by count: the third on one rank matches the third on every other. If a rank
swaps two of the same shape, they are silently mixed. The lines reveal the swap: for one number,
ranks are at different lines, and each of these ranks also reaches the other line. Lines reached by
one rank only are a branch (``if rank() == 0: a() else: b()``), which is not a mistake; neither are
lines of one function without a path between them (``branches``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from farandole.checks.catalogue import CALL_ORDER
from farandole.checks.finding import Finding
from farandole.errors import ranks_named


class CallReport(NamedTuple):
    """The lines from which one rank called unnamed collectives.

    ``places``: the lines, as ``file:line``. ``calls``: the index of a place by the number of the
    call. ``exclusive``: pairs of indices of places that exclude each other in one pass through
    their function. ``last``: the highest number so far.
    """

    places: Sequence[str] = ()
    calls: Mapping[int, int] = {}
    exclusive: Sequence[Sequence[int]] = ()
    last: int = 0


def swapped_calls(reports: Sequence[CallReport | None]) -> Finding | None:
    """Return the finding for the first pair of swapped calls, or None. ``reports``: the reports by
    rank; None for a rank that does not take part.
    """
    places_of = {
        rank: {number: report.places[index] for number, index in report.calls.items()}
        for rank, report in enumerate(reports)
        if report is not None
    }
    passed = {rank: set(places.values()) for rank, places in places_of.items()}
    branches = {
        frozenset((report.places[first], report.places[second]))
        for report in reports
        if report is not None
        for first, second in report.exclusive
    }
    for number in sorted(set[int]().union(*places_of.values())):
        there = {rank: places[number] for rank, places in places_of.items() if number in places}
        for one, other in combinations(there, 2):
            pair = {there[one], there[other]}
            if (
                len(pair) == 2
                and pair <= passed[one]
                and pair <= passed[other]
                and pair not in branches
            ):
                return _finding(number, there, there[one], there[other])
    return None


def _finding(number: int, there: Mapping[int, str], first: str, second: str) -> Finding:
    ranks = [[rank for rank, place in there.items() if place == at] for at in (first, second)]
    return CALL_ORDER.finding(
        "the ranks call unnamed collectives in different orders, which mixes up unrelated tensors:"
        f" call {number % (1 << 40)} is at {first} on {ranks_named(ranks[0])} and at {second} on"
        f" {ranks_named(ranks[1])}. Name each collective, as in hvd.allreduce(loss, name='loss'),"
        " or make these calls in the same order on all ranks",
        where=f"{first} and {second}",
    )
