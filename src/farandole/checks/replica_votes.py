"""Votes of all ranks that identify damaged replicas. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Votes(NamedTuple):
    """The result of a comparison of all replicas.

    - ``majority``: The ranks with equal replicas, if more than half of all; otherwise empty.
    - ``damaged``: By each other rank, the places of its values that differ from the majority's. If
      there is no majority, by each rank but the first, the places that differ from the first's.
    - ``groups``: The ranks with equal replicas, the largest group first.
    """

    majority: tuple[int, ...]
    damaged: Mapping[int, tuple[int, ...]]
    groups: tuple[tuple[int, ...], ...]

    @property
    def reference(self) -> int:
        """The rank with which ``damaged`` compares the other ranks."""
        return self.majority[0] if self.majority else 0

    @property
    def places(self) -> tuple[int, ...]:
        """The places that differ on any rank."""
        return tuple(sorted({place for places in self.damaged.values() for place in places}))


def votes_of(digests: Sequence[Sequence[int]]) -> Votes:
    """Count the votes in ``digests``: by rank, a digest of each replicated value, the same number
    on all ranks.

    The majority is counted for all values together: a rank with one damaged value is not trusted
    for any other value.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, row in enumerate(digests):
        groups.setdefault(tuple(row), []).append(rank)
    by_size = tuple(sorted(map(tuple, groups.values()), key=len, reverse=True))
    largest = by_size[0]
    has_majority = 2 * len(largest) > len(digests)
    expected = tuple(digests[largest[0] if has_majority else 0])
    damaged = {
        rank: tuple(
            place
            for place, (mine, theirs) in enumerate(zip(row, expected, strict=True))
            if mine != theirs
        )
        for rank, row in enumerate(digests)
        if tuple(row) != expected
    }
    return Votes(largest if has_majority else (), damaged, by_size)
