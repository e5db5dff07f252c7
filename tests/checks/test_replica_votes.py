"""Votes of the ranks about damaged replicas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.checks.replica_votes import votes_of


@pytest.mark.parametrize(
    ("digests", "majority", "damaged"),
    [
        ([[1, 2], [1, 2], [1, 2]], (0, 1, 2), {}),
        ([[1, 2], [1, 3], [1, 2]], (0, 2), {1: (1,)}),
        ([[9, 9], [1, 2], [1, 2]], (1, 2), {0: (0, 1)}),
        ([[1, 2], [1, 3]], (), {1: (1,)}),
        ([[1], [1], [2], [2]], (), {2: (0,), 3: (0,)}),
        ([[1, 2], [1, 3], [0, 2]], (), {1: (1,), 2: (0,)}),
        ([[1], [1], [1], [2], [3]], (0, 1, 2), {3: (0,), 4: (0,)}),
    ],
)
def test_votes(
    digests: list[list[int]], majority: tuple[int, ...], damaged: dict[int, tuple[int, ...]]
) -> None:
    votes = votes_of(digests)
    assert votes.majority == majority
    assert votes.damaged == damaged


@given(st.lists(st.lists(st.integers(1, 3), min_size=2, max_size=2), min_size=1, max_size=7))
def test_a_repair_makes_all_replicas_equal(digests: list[list[int]]) -> None:
    votes = votes_of(digests)
    if not votes.majority:
        return
    assert 2 * len(votes.majority) > len(digests)
    expected = digests[votes.majority[0]]
    for rank, places in votes.damaged.items():
        for place in places:
            digests[rank][place] = expected[place]
    assert all(row == expected for row in digests)
