"""Stragglers: ranks that compute much longer than the others in several windows in a row."""

from __future__ import annotations

import pytest

from farandole.checks.stragglers import (
    LONG_WARM_UP,
    WARM_UP,
    WINDOWS,
    CommitTimes,
    StragglerSeries,
    straggler_of,
)


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


def shortest(own: list[float], epochs: list[int | None], waits: float = 5.0) -> float:
    """Return the time of a window in which a rank computes for ``own`` seconds before each commit,
    and waits for others.
    """
    times, now = CommitTimes(), 100.0
    times.add(now, 0.0, epochs[0])
    for number, (seconds, epoch) in enumerate(zip(own, epochs, strict=True), 1):
        now += seconds + waits
        times.add(now, number * waits, epoch)
    return times.end_window()


@pytest.mark.parametrize(
    ("own", "epochs", "expected"),
    [
        ([3.0] * 4, [None] * 4, 3.0),  # slow in each step
        ([1.0, 30.0, 1.0, 40.0], [None] * 4, 1.0),  # a loader that stalls, evaluations
        ([9.0, 0.5, 2.0, 0.5], [0, 1, 1, 2], 2.0),  # ends of epochs do not count
        ([9.0, 9.0], [1, 2], 9.0),
        ([9.0, 9.0], [None, None], 9.0),
    ],
)
def test_the_shortest_time_of_a_window_counts(
    own: list[float], epochs: list[int | None], expected: float
) -> None:
    assert shortest(own, epochs) == pytest.approx(expected)


def test_commits_at_ends_of_epochs_give_no_time() -> None:
    times = CommitTimes()
    for epoch in range(5):
        times.add(10.0 * epoch, 0.0, epoch)
    assert times.end_window() == 0.0


def test_ranks_are_warm_after_the_first_epoch() -> None:
    def warm_at(epochs: list[int | None]) -> int:
        times = CommitTimes()
        for number, epoch in enumerate(epochs):
            times.add(float(number), 0.0, epoch)
            if times.is_warm:
                return number
        return -1

    assert warm_at([None] * (WARM_UP + 5)) == WARM_UP
    assert warm_at([2] * 30 + [3] * 5) == 30  # joined in epoch 2
    assert warm_at([0] * (LONG_WARM_UP + 5)) == LONG_WARM_UP
    assert warm_at([0] * (WARM_UP + 5)) == -1
