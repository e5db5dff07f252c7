"""Damaged replicas are distinguished from mistakes in the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.base.digests import whole_digest
from farandole.checks.replica_causes import (
    Differences,
    EarlierDifference,
    difference_of,
    mistake_of,
)
from farandole.checks.replica_votes import votes_of

Replica = Sequence[Any]  # arrays of float32


def replica(seed: int = 0, sizes: Sequence[int] = (60, 5, 60, 5)) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size).astype(np.float32) for size in sizes]


def octets(array: Any) -> Any:
    return array.view(np.uint8)


def flip(array: Any, index: int, bit: int = 20) -> None:
    array.view(np.uint32)[index] ^= np.uint32(1 << bit)


def compared(
    ranks: Sequence[Replica],
    earlier: Mapping[int, EarlierDifference] | None = None,
    number: int = 7,
) -> tuple[str, dict[int, Differences]]:
    """Return the reason for a mistake, and the differences of the ranks."""
    votes = votes_of([[whole_digest(value) for value in each] for each in ranks])
    right = ranks[votes.reference]
    found = {
        rank: [
            each
            for place in places
            if (each := difference_of(place, octets(ranks[rank][place]), octets(right[place])))
        ]
        for rank, places in votes.damaged.items()
    }
    reason = mistake_of(votes, found, len(right), earlier or {}, number, were_equal=number > 0)
    return reason, dict(found)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_flipped_bit_is_damage(size: int) -> None:
    for number in (0, 7):  # also at the first comparison
        ranks = [replica() for _ in range(size)]
        flip(ranks[-1][0], 12)
        assert compared(ranks, number=number)[0] == ""


@given(
    flips=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 59), st.integers(0, 31)),
        min_size=1,
        max_size=3,
        unique_by=lambda each: each[0],  # one number per value
    ),
    size=st.integers(2, 5),
    rank=st.integers(0, 4),
    number=st.integers(0, 5),
)
def test_single_numbers_are_damage(
    flips: list[tuple[int, int, int]], size: int, rank: int, number: int
) -> None:
    ranks = [replica() for _ in range(size)]
    for value, index, bit in flips:
        array = ranks[rank % size][value]
        flip(array, index % len(array), bit)
    assert compared(ranks, number=number)[0] == ""


@given(size=st.integers(2, 5), rank=st.integers(0, 4), number=st.integers(0, 5))
def test_another_learning_rate_is_a_mistake(size: int, rank: int, number: int) -> None:
    """The parameters differ, and the momenta do not."""
    ranks = [replica() for _ in range(size)]
    for value in ranks[rank % size][:2]:
        value *= np.float32(0.99)
    assert compared(ranks, number=number)[0]


def test_weights_that_differ_from_the_beginning() -> None:
    ranks = [replica() for _ in range(3)]
    ranks[1][2][:10] += 1
    assert compared(ranks, number=0)[0]
    assert compared(ranks, number=3)[0] == ""  # some numbers of one value


def test_ranks_that_all_differ() -> None:
    ranks = [replica() for _ in range(3)]
    for rank in (1, 2):
        flip(ranks[rank][0], 5, bit=rank)
    assert "3" in compared(ranks)[0]


def test_ranks_with_the_same_difference() -> None:
    ranks = [replica() for _ in range(5)]
    for rank in (1, 3):
        flip(ranks[rank][0], 5)
    assert "ranks 1, 3" in compared(ranks)[0]
    flip(ranks[3][0], 5)
    flip(ranks[3][0], 6)  # two independent defects
    assert compared(ranks)[0] == ""


def again(change: Any, number: int) -> str:
    """Compare twice: rank 1 has ``change(replica, 0)``, then ``change(replica, 1)``."""
    reasons = []
    earlier: dict[int, EarlierDifference] = {}
    for turn, at in enumerate((7, number)):
        ranks = [replica() for _ in range(3)]
        change(ranks[1], turn)
        reason, found = compared(ranks, earlier, at)
        reasons.append(reason)
        earlier = {rank: EarlierDifference(at, each) for rank, each in found.items()}
    assert reasons[0] == ""
    return reasons[1]


def set_to_zero(ranks: Any, turn: int) -> None:
    ranks[0][3] = 0.0


def clamp(ranks: Any, turn: int) -> None:
    ranks[0][7 + turn : 15] = 0.25


def stuck_cell(ranks: Any, turn: int) -> None:
    flip(ranks[0], 3)


def two_cells(ranks: Any, turn: int) -> None:
    ranks[0][3 + 20 * turn] += 1.0


@pytest.mark.parametrize(
    ("change", "number", "is_mistake"),
    [
        (set_to_zero, 8, True),
        (set_to_zero, 12, True),
        (clamp, 8, True),
        (clamp, 12, False),
        (stuck_cell, 8, False),
        (two_cells, 8, False),
    ],
)
def test_the_same_rank_differs_again(change: Any, number: int, is_mistake: bool) -> None:
    assert bool(again(change, number)) == is_mistake


def test_differences_are_counted_in_blocks() -> None:
    mine = np.zeros(20, np.uint8)
    other = mine.copy()
    assert difference_of(3, mine, other) is None
    other[9], other[16] = 1, 3
    assert difference_of(3, mine, other) == (3, 2, 3, 1, 3)
