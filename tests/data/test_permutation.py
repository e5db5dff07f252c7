"""The computed order: a permutation, well mixed, the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.data import Permutation


@given(st.integers(1, 3000), st.integers(-(1 << 63), 1 << 64), st.integers(0, 1 << 40))
def test_every_index_comes_once(length: int, seed: int, epoch: int) -> None:
    order = Permutation(length, seed, epoch)(np.arange(length))
    assert np.array_equal(np.sort(order), np.arange(length))


def test_a_position_is_independent_of_other_requests() -> None:
    order = Permutation(1000, 5, 2)
    whole = order(np.arange(1000))
    for positions in ([7], [999, 0, 7, 7], range(3, 1000, 17)):
        assert np.array_equal(order(np.array(positions)), whole[np.array(positions)])


def test_the_order_is_the_same_on_every_machine_and_version() -> None:
    assert Permutation(10, 1, 2)(np.arange(10)).tolist() == [8, 5, 7, 9, 6, 2, 3, 0, 1, 4]
    far = np.array([0, 1, (1 << 40) - 1])
    assert Permutation(1 << 40, 1, 2)(far).tolist() == [
        788855822359,
        335052695155,
        466670201076,
    ]


def test_seeds_and_epochs_give_other_orders() -> None:
    positions = np.arange(1000)
    orders = [Permutation(1000, seed, epoch)(positions) for seed in range(4) for epoch in range(4)]
    for number, one in enumerate(orders):
        for two in orders[:number]:
            assert (one == two).sum() < 12  # by chance: 1 on average


@pytest.mark.parametrize("length", [3, 5, 10])
def test_every_index_is_as_likely_at_every_position(length: int) -> None:
    """Chi-squared; seeds are fixed, so this cannot fail by chance."""
    epochs = 1500
    counts = np.zeros((length, length))
    for epoch in range(epochs):
        counts[np.arange(length), Permutation(length, 0, epoch)(np.arange(length))] += 1
    expected = epochs / length
    statistic = ((counts - expected) ** 2 / expected).sum() * (length - 1) / length
    freedom = (length - 1) ** 2
    assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)


def test_neighbours_are_torn_apart() -> None:
    order = Permutation(1 << 16, 3, 0)(np.arange(1 << 16)).astype(np.float64)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(order, np.arange(1 << 16))[0, 1]) < 0.02
