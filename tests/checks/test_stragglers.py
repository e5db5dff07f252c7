"""Stragglers: ranks that compute much longer than the others in several windows in a row."""

from __future__ import annotations

import pytest

from farandole.checks.stragglers import WINDOWS, StragglerSeries, straggler_of


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([1.0, 1.0, 1.0], -1),
        ([1.0, 2.5, 1.0], 1),
        ([1.0, 1.9, 1.0], -1),
        ([1.0, 3.0], 1),
        ([3.0, 0.0, 1.0], 0),
        ([3.0, 0.0, 0.0], -1),
        ([3.0], -1),
        ([3.0, 3.0, 1.0], -1),  # most ranks are slow
        ([1.0, 3.0, 3.5, 1.0, 1.0], 2),
    ],
)
def test_the_slowest_rank_is_compared_with_the_others(seconds: list[float], expected: int) -> None:
    assert straggler_of(seconds, 2.0) == expected


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([1] * WINDOWS, [False] * (WINDOWS - 1) + [True]),
        ([1, 1, -1, 1, 1, 1], [False] * 5 + [True]),
        ([1, 2, 1, 2, 1, 2], [False] * 6),
        ([-1] * 5, [False] * 5),
        ([1] * (WINDOWS + 2), [False] * (WINDOWS - 1) + [True, False, False]),
    ],
)
def test_a_straggler_is_one_in_several_windows(ranks: list[int], expected: list[bool]) -> None:
    series = StragglerSeries()
    assert [series.add(rank) for rank in ranks] == expected
