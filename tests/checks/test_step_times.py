"""The times of steps, and stragglers: ranks that compute much longer than the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from farandole.checks.step_times import (
    LONG_WARM_UP,
    SHORTEST_OF,
    WARM_UP,
    WINDOWS,
    StepInterval,
    StepTimes,
    StragglerSeries,
    commits_until_next,
    straggler_of,
    time_of,
    windows_of,
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


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], 0.0),
        ([3.0, 2.0], 2.0),
        ([1.0, 30.0] * 5, 1.0),  # a loader that stalls, evaluations
        ([3.0] * 35, 3.0),
        ([3.0] * 30 + [1.0] * 10, 3.0),
        ([3.0] * 30 + [1.0] * 9, 3.0),  # fewer than ten steps are left over
    ],
)
def test_the_shortest_of_ten_steps_counts(steps: list[float], expected: float) -> None:
    assert time_of(steps) == expected


Compute = Callable[[int, int], float]  # of a rank in a step, in seconds


class History:
    """A simulated training. ``seconds``: the computing time of a rank in a step. ``rounds``: the
    number of collectives of a step. ``counted``: whether an optimizer counts the steps.
    """

    def __init__(
        self, seconds: Compute, *, ranks: int = 3, rounds: int = 4, counted: bool = True
    ) -> None:
        self.times = [StepTimes() for _ in range(ranks)]
        self._seconds, self._rounds, self._counted = seconds, rounds, counted
        self._now, self._blocked, self._step = 100.0, [0.0] * ranks, 0
        self._series = StragglerSeries()

    def train(self, steps: int, epoch: int | None = None) -> None:
        for _ in range(steps):
            own = [self._seconds(rank, self._step) for rank in range(len(self.times))]
            self._step += 1
            begin, end = self._now, self._now + max(own)
            for number in range(1, self._rounds + 1):  # the exchange takes as long as a step
                self._now = end + number / self._rounds
                for rank, times in enumerate(self.times):
                    blocked = self._blocked[rank] + self._now - begin - own[rank]
                    times.add(self._now, blocked, self._step if self._counted else 0, epoch)
            for rank, each in enumerate(own):
                self._blocked[rank] += self._now - begin - each

    def compare(self) -> int:
        """Return the straggler of the last ``WINDOWS`` windows; -1 for none."""
        found = -1
        for window in windows_of([times.end_interval() for times in self.times], 2.0):
            if self._series.add(window.rank):
                found = window.rank
        return found


def slow(rank: int, step: int) -> float:
    return 3.0 if rank == 1 else 1.0


def test_a_commit_at_the_end_of_an_epoch_finds_a_straggler() -> None:
    history = History(slow)
    found = []
    for epoch in range(3):
        history.train(40, epoch)
        found.append(history.compare())
    assert found == [-1, 1, -1]  # after the first epoch, and once


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_rounds_take_the_place_of_uncounted_steps(rounds: int) -> None:
    history = History(slow, rounds=rounds, counted=False)
    history.train(140, 0)
    assert history.compare() == -1
    history.train(700, 1)
    assert history.compare() == 1


def test_commits_in_each_step_need_several_comparisons() -> None:
    history = History(slow)
    history.train(WARM_UP + 2)
    found = []
    for _ in range(5):
        found.append(history.compare())
        history.train(SHORTEST_OF)
    assert found == [-1, -1, -1, 1, -1]


@pytest.mark.parametrize(
    "seconds",
    [
        lambda rank, step: 1.0 + 50.0 * (rank == 0 and step % 8 == 0),  # evaluations on rank 0
        lambda rank, step: 1.0 + 9.0 * ((step + rank) % 3 == 0),  # loaders that stall
        lambda rank, step: 3.0 if rank == 1 and step < 100 else 1.0,  # slow for a while
        lambda rank, step: 3.0 if rank == step // 20 % 3 else 1.0,  # each in turn
        lambda rank, step: 1.9 if rank == 1 else 1.0,
        lambda rank, step: 1.0 if rank == 1 else 3.0,
    ],
)
def test_no_rank_is_slow_in_each_step(seconds: Compute) -> None:
    history = History(seconds)
    for epoch in range(4):
        history.train(90, epoch)
        assert history.compare() == -1


def test_a_rank_is_slow_in_the_mean_too() -> None:
    """Between two collectives of a step, a rank writes a line of its log."""
    short, long = (
        StepInterval(90, 90, mean, *[least] * 4) for mean, least in [(1.0, 0.1), (1.1, 0.9)]
    )
    assert [window.rank for window in windows_of([short, long, short], 2.0)] == [-1] * WINDOWS
    slower = long._replace(mean=2.1)
    assert [window.rank for window in windows_of([short, slower, short], 2.0)] == [1] * WINDOWS
    idle = StepInterval(90, 0, *[0.0] * 5)
    assert windows_of([short, slower, idle], 2.0) == []


def test_steps_in_which_an_epoch_ends_do_not_count() -> None:
    history = History(lambda rank, step: 50.0 if rank == 0 and step % 2 == 0 else 1.0)
    for epoch in range(60):  # rank 0 evaluates in the first of two steps
        history.train(2, epoch)
        assert history.compare() == -1


def test_times_are_recorded_after_the_first_epoch() -> None:
    def first_recorded(epochs: list[int | None]) -> int:
        history = History(slow)
        for number, epoch in enumerate(epochs):
            history.train(1, epoch)
            if history.times[0].end_interval().recorded:
                return number
        return -1

    assert first_recorded([None] * (WARM_UP + 5)) == WARM_UP + 2
    assert first_recorded([2] * 30 + [3] * 5) == 31  # joined in epoch 2
    assert first_recorded([0] * (LONG_WARM_UP + 5)) == LONG_WARM_UP + 2
    assert first_recorded([0] * (WARM_UP + 5)) == -1


def test_many_steps_take_little_memory() -> None:
    history = History(slow, ranks=2, rounds=1)
    history.train(10)
    history.train(40_000)
    interval = history.times[1].end_interval()
    assert interval.passed == 40_008
    assert 2000 < interval.recorded < 4100
    assert interval.third == pytest.approx(3.0)


def test_a_new_optimizer_counts_from_zero() -> None:
    times = StepTimes()
    for now, steps in enumerate([0, 1, 2, 3, 0, 1, 2]):
        times.add(float(now), 0.0, steps, now)
    assert times.end_interval().passed == 4


@pytest.mark.parametrize(
    ("steps", "commits", "expected"),
    [
        ([1, 1], 1, SHORTEST_OF),
        ([10, 9], 10, 11),
        ([5, 5], 1, 2),
        ([40, 39], 1, 1),
        ([40, 0], 1, SHORTEST_OF),
        ([5, 4], 10, 25),
    ],
)
def test_a_comparison_follows_about_ten_steps(
    steps: list[int], commits: int, expected: int
) -> None:
    intervals = [StepInterval(each, each, *[1.0] * 5) for each in steps]
    assert commits_until_next(intervals, commits) == expected
