"""Hosts that cannot reach each other, and the choice of the hosts to exclude. Pure.

The network between two hosts may fail, in one direction or both, while the driver reaches both of
them. Their ranks can then never form a membership together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from farandole.errors import counted
from farandole.job.elastic.membership import Member


class BrokenLink(NamedTuple):
    """A rank on ``host`` that cannot reach rank ``peer`` on the host ``other``."""

    rank: int
    host: str
    peer: int
    other: str

    def describe(self) -> str:
        """Return one clause for the user."""
        return f"rank {self.rank} on {self.host} cannot reach rank {self.peer} on {self.other}"


def listed(links: Sequence[BrokenLink]) -> str:
    """Return the links as one clause for the user: the first, and the number of the others."""
    more = f", and {counted(len(links) - 1, 'more pair')} of hosts" if len(links) > 1 else ""
    return f"{links[0].describe()}{more}"


def broken_links(
    members: Sequence[Member], unreached: Mapping[int, Iterable[int]]
) -> list[BrokenLink]:
    """Return one broken link for each pair of hosts, in rank order.

    ``members``: the members of a membership, in rank order. ``unreached``: for each process that is
    still running, the ranks that it could not reach; ranks of other processes are skipped.
    """
    found: dict[frozenset[str], BrokenLink] = {}
    for rank, member in enumerate(members):
        for peer in sorted(unreached.get(member.process, ())):
            if not 0 <= peer < len(members) or members[peer].process not in unreached:
                continue
            other = members[peer].host
            if other != member.host:
                link = BrokenLink(rank, member.host, peer, other)
                found.setdefault(frozenset((member.host, other)), link)
    return list(found.values())


def hosts_to_leave_out(
    links: Iterable[BrokenLink], ranks: Mapping[str, int], holders: Collection[str]
) -> list[str]:
    """Return the hosts to exclude so that all others reach each other.

    Hosts are excluded one by one: first the host that most ranks cannot reach; in a tie the one
    that most hosts cannot reach, then the one with the fewest ranks, then the last one. Hosts
    without the state of the training are excluded before hosts that have it.

    ``ranks``: the number of ranks on each host, in rank order. ``holders``: the hosts that have the
    state; one of them is always kept.
    """
    pairs = {frozenset((link.host, link.other)) for link in links}
    order, kept, out = list(ranks), set(holders), list[str]()
    while pairs:
        peers: dict[str, set[str]] = {}
        for one, other in map(tuple, pairs):
            peers.setdefault(one, set()).add(other)
            peers.setdefault(other, set()).add(one)
        chosen = max(
            (host for host in peers if kept != {host}),
            key=lambda host: (
                host not in kept,
                sum(ranks[peer] for peer in peers[host]),
                len(peers[host]),
                -ranks[host],
                order.index(host),
            ),
        )
        out.append(chosen)
        kept.discard(chosen)
        pairs = {pair for pair in pairs if chosen not in pair}
    return out
