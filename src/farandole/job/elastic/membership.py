"""Memberships: the numbered sets of processes that successively form an elastic job. Pure.

A process keeps its number and its local rank from its start to its end; its rank depends on the
membership.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from farandole.job.config import Placement


class Member(NamedTuple):
    """A process of an elastic job.

    - ``process``: Its number, counted over the whole job and never reused.
    - ``host``: The host's name in the job.
    - ``local_rank``: Its slot on the host. It never changes, because a GPU may be bound to it.
    """

    process: int
    host: str
    local_rank: int


class Membership(NamedTuple):
    """The processes that form the job until the next membership.

    - ``number``: The number of the membership in the job, from 1.
    - ``members``: The processes, in rank order.
    - ``removed``: The members of the previous membership that are still running and have to leave.
    - ``port``: A free port for torch.distributed's store if all members are on the driver's host;
      0 otherwise.
    - ``lost``: The number of commits of a state that no member has, so that the members have to
      load one from a folder; 0 if a member has the state.
    """

    number: int
    members: tuple[Member, ...]
    removed: tuple[int, ...] = ()
    port: int = 0
    lost: int = 0

    @property
    def processes(self) -> tuple[int, ...]:
        """The numbers of the members, in rank order."""
        return tuple(member.process for member in self.members)

    def to_bytes(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def from_bytes(cls, data: bytes | bytearray) -> Membership:
        """Invert ``to_bytes``."""
        facts: dict[str, Any] = json.loads(data)
        members = tuple(Member(*fields) for fields in facts["members"])
        removed = tuple(facts["removed"])
        return cls(facts["number"], members, removed, facts["port"], facts["lost"])


def arrange(
    stayers: Sequence[Member], joiners: Iterable[Member], first: int | None = None
) -> tuple[Member, ...]:
    """Return the members in rank order: ``stayers`` in their order, then ``joiners``, grouped by
    host.

    ``first``: the process to become rank 0; None for the first of the stayers.
    """
    everyone = [*stayers, *joiners]
    if first is not None:
        everyone.sort(key=lambda member: member.process != first)  # stable
    hosts: dict[str, list[Member]] = {}
    for member in everyone:
        hosts.setdefault(member.host, []).append(member)
    return tuple(member for group in hosts.values() for member in group)


def placements(membership: Membership) -> list[Placement]:
    """Return the placement of each rank, in rank order.

    Hosts are ordered by their first rank. ``cross_rank`` counts the hosts before this one that
    have a member with the same local rank.
    """
    local_sizes: dict[str, int] = {}
    with_local_rank: dict[int, list[str]] = {}
    for member in membership.members:
        local_sizes[member.host] = local_sizes.get(member.host, 0) + 1
        with_local_rank.setdefault(member.local_rank, []).append(member.host)
    crossing = {
        (local_rank, host): index
        for local_rank, hosts in with_local_rank.items()
        for index, host in enumerate(hosts)
    }
    homogeneous = len(set(local_sizes.values())) <= 1
    return [
        Placement(
            rank=rank,
            size=len(membership.members),
            local_rank=member.local_rank,
            local_size=local_sizes[member.host],
            cross_rank=crossing[member.local_rank, member.host],
            cross_size=len(with_local_rank[member.local_rank]),
            hostname=member.host,
            homogeneous=homogeneous,
            generation=membership.number,
        )
        for rank, member in enumerate(membership.members)
    ]


def free_local_rank(taken: Iterable[int]) -> int:
    """Return the lowest local rank that is not in ``taken``."""
    used = set(taken)
    return next(number for number in range(len(used) + 1) if number not in used)


def count_by_host(members: Iterable[Member]) -> Mapping[str, int]:
    """Return the number of members on each host."""
    counts: dict[str, int] = {}
    for member in members:
        counts[member.host] = counts.get(member.host, 0) + 1
    return counts
