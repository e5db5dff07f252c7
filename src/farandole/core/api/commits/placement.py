"""The ranks that keep copies of a rank's own values, and the ranks that take over from lost ranks.
Pure.

The holders of a rank are on other hosts, each on a different one, so that as many hosts may be lost
as there are copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


def holders_of(rank: int, hosts: Sequence[str], copies: int) -> list[int]:
    """Return the ranks that keep copies for ``rank``: at most ``copies``, first on the next hosts,
    then on any host.

    ``hosts``: the host of each rank.
    """
    names = list(dict.fromkeys(hosts))
    begin, mine = names.index(hosts[rank]), hosts[: rank + 1].count(hosts[rank]) - 1
    found = []
    for name in [*names[begin + 1 :], *names[:begin]]:
        there = [each for each, host in enumerate(hosts) if host == name]
        found.append(there[mine % len(there)])
    size = len(hosts)
    others = [(rank + step) % size for step in range(1, size)]
    others.sort(key=lambda each: hosts[each] == hosts[rank])  # stable
    return [*found, *(each for each in others if each not in found)][:copies]


class Holding(NamedTuple):
    """The description that a rank shares after a change of members.

    - ``process``: The number of its process.
    - ``host``: Its host.
    - ``is_new``: Whether it has no own values yet.
    - ``absorbed``: The lost processes whose values are in its own values.
    - ``held``: For each process with a copy here: the number of the commit, and the lost processes
      whose values are in the copy.
    """

    process: int
    host: str
    is_new: bool
    absorbed: frozenset[int]
    held: Mapping[int, tuple[int, frozenset[int]]]


def lost_among(ranks: Sequence[Holding]) -> dict[int, int]:
    """Return the lost processes whose values no rank has merged, in order, each with the first rank
    that has its newest copy.
    """
    present = {each.process for each in ranks}
    absorbed = set[int]().union(*(each.absorbed for each in ranks))
    newest: dict[int, tuple[int, int]] = {}  # commit, -rank: the first rank wins
    merged: dict[int, frozenset[int]] = {}
    for rank, each in enumerate(ranks):
        for process, (number, others) in each.held.items():
            if process not in present and (number, -rank) > newest.get(process, (-1, 0)):
                newest[process], merged[process] = (number, -rank), others
    # A lost rank may itself have absorbed earlier ones.
    absorbed = absorbed.union(*(merged[each] for each in newest if each not in absorbed))
    return {each: -newest[each][1] for each in sorted(newest) if each not in absorbed}


def heirs_of(lost: Sequence[int], ranks: Sequence[Holding]) -> dict[int, int]:
    """Return, for each lost process, the rank that takes over its values: one for each new rank,
    then all ranks in turn.
    """
    new = [rank for rank, each in enumerate(ranks) if each.is_new]
    size = len(ranks)
    return {
        process: new[index] if index < len(new) else (index - len(new)) % size
        for index, process in enumerate(lost)
    }
