"""The computing times of a rank's steps, and their comparison over all ranks. Pure.

A step takes the same time on all ranks, because they wait for the slowest one. The computing time
of a rank is the duration of its steps without the time for which its program was blocked in
collectives. Steps are counted by optimizers. In a program without one of Farandole's optimizers,
``ROUNDS`` successive collectives take the place of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

SHORTEST_OF = 10  # successive steps; the shortest counts
WINDOWS = 3  # consecutive windows in which one rank is slowest by the factor
ROUNDS = 20  # collectives in place of a step
# Steps (or collectives) after a change of the ranks before times are recorded, without and with
# epochs.
WARM_UP, LONG_WARM_UP = 100, 1000
_MOST = 4096  # recorded steps; of more steps, every second one is kept, then every fourth, ...


def straggler_of(seconds: Sequence[float], factor: float) -> int:
    """Return the rank that computes for more than ``factor`` times the median of the other ranks;
    -1 for none.

    ``seconds``: by rank, the time of a step; 0 for a rank without a recorded step.
    """
    known = [each for each in seconds if each > 0.0]
    if len(known) < 2:
        return -1
    slowest = max(range(len(seconds)), key=lambda rank: seconds[rank])
    return slowest if seconds[slowest] > factor * others_of(seconds, slowest) else -1


def others_of(seconds: Sequence[float], rank: int) -> float:
    """Return the median over all ranks but ``rank``; see ``straggler_of``."""
    return median(each for other, each in enumerate(seconds) if each > 0.0 and other != rank)


class StragglerSeries:
    """The stragglers of successive windows."""

    def __init__(self) -> None:
        self._rank, self._count = -1, 0

    def add(self, rank: int) -> bool:
        """Add the straggler of a window; -1 for none. Return whether it was the straggler in the
        last ``WINDOWS`` windows.
        """
        self._count = self._count + 1 if rank == self._rank else 1
        self._rank = rank
        return rank >= 0 and self._count == WINDOWS


class StepInterval(NamedTuple):
    """A rank's steps between two comparisons.

    - ``passed``: The number of all steps.
    - ``recorded``: The number of steps whose times are recorded.
    - ``mean``: The mean of the recorded times, in seconds; 0 without a recorded step.
    - ``whole``: The time of a step without interruptions (``time_of``).
    - ``first``, ``second``, ``third``: The same for thirds of the interval.
    """

    passed: float
    recorded: float
    mean: float
    whole: float
    first: float
    second: float
    third: float

    def scaled(self, factor: float) -> StepInterval:
        """Return the interval with all times multiplied by ``factor``."""
        return StepInterval(*self[:2], *(each * factor for each in self[2:]))


class StepWindow(NamedTuple):
    """A part of an interval. ``seconds``: by rank, the time of a step. ``rank``: the straggler; -1
    for none.
    """

    seconds: list[float]
    rank: int


def windows_of(intervals: Sequence[StepInterval], factor: float) -> list[StepWindow]:
    """Return the windows of an interval: ``WINDOWS`` if all ranks have enough recorded steps, else
    one; none if a rank has no recorded step.

    A straggler exceeds the other ranks by ``factor`` in its shortest steps and in the mean: short
    intervals between successive collectives say little.

    ``intervals``: the same interval of each rank.
    """
    recorded = min(each.recorded for each in intervals)
    if not recorded:
        return []
    times = [
        each[-WINDOWS:] if recorded >= WINDOWS * SHORTEST_OF else each[3:4] for each in intervals
    ]
    means = [each.mean for each in intervals]
    found = []
    for column in zip(*times, strict=True):
        rank = straggler_of(column, factor)
        is_slow = rank >= 0 and means[rank] > factor * others_of(means, rank)
        found.append(StepWindow(list(column), rank if is_slow else -1))
    return found


def commits_until_next(intervals: Sequence[StepInterval], commits: int) -> int:
    """Return the number of commits until the next comparison, after about ``SHORTEST_OF`` steps.

    ``intervals``: the last interval of each rank. ``commits``: the number of commits in it.
    """
    steps = min(each.passed for each in intervals)
    if not steps:
        return SHORTEST_OF
    return max(1, round(SHORTEST_OF * commits / steps))


def time_of(steps: Sequence[float]) -> float:
    """Return the time of a step without interruptions, in seconds; 0 without steps.

    It is the median, over each ``SHORTEST_OF`` successive steps, of the shortest. A slow host is
    slow in each step, but evaluations and checkpoints on one rank, or a stalled loader, lengthen
    only some steps.
    """
    if not steps:
        return 0.0
    ends = range(SHORTEST_OF, len(steps) + 1, SHORTEST_OF) or (len(steps),)
    return median(min(steps[max(0, end - SHORTEST_OF) : end]) for end in ends)


class StepTimes:
    """The computing times of a rank's steps, from the rounds of its collectives.

    The first epoch after a change of the ranks is left out, in which ranks compile and fill their
    caches: at most ``LONG_WARM_UP`` steps, and ``WARM_UP`` steps without epochs. So are steps in
    which an epoch ends.
    """

    def __init__(self) -> None:
        self.counted = False  # whether an optimizer counts the steps
        self._since: tuple[float, float, int, int | None] | None = None  # see ``add``
        self._rounds = 0  # since then
        self._first_epoch: int | None = None
        self._total = 0  # steps, or collectives, since the change of the ranks
        self._passed = 0  # steps in this interval
        self._recorded: list[float] = []
        self._stride = 1

    def add(self, now: float, blocked: float, steps: int, epoch: int | None) -> None:
        """Add a completed round.

        ``now``: its time in seconds. ``blocked``: the seconds for which the program has been
        blocked in collectives so far. ``steps``: the steps counted by optimizers so far. ``epoch``:
        the state's epoch; None if it has none.
        """
        since, here = self._since, (now, blocked, steps, epoch)
        self._rounds += 1
        if since is None:
            self._first_epoch = epoch
            self._restart(here)
        elif steps != since[2]:
            done = steps - since[2]  # negative if the counted optimizer is gone
            if self.counted and done > 0:
                self._end_step(since, here, done)
            elif not self.counted:
                self.counted = True
                self._total, self._passed, self._recorded = 0, 0, []
            self._restart(here)
        elif not self.counted and self._rounds == ROUNDS:
            self._end_step(since, here, 1)
            self._restart(here)

    def _restart(self, here: tuple[float, float, int, int | None]) -> None:
        self._since, self._rounds = here, 0

    def _end_step(
        self,
        since: tuple[float, float, int, int | None],
        here: tuple[float, float, int, int | None],
        steps: int,
    ) -> None:
        """Record the mean of ``steps`` steps, unless ranks are still warming up."""
        epoch = here[3]
        self._total += steps if self.counted else ROUNDS
        self._passed += steps
        is_warm = (
            self._total > WARM_UP
            if epoch is None
            else epoch != self._first_epoch or self._total > LONG_WARM_UP
        )
        if not is_warm or epoch != since[3] or self._passed % self._stride:
            return
        self._recorded.append(max(here[0] - since[0] - (here[1] - since[1]), 1e-9) / steps)
        if len(self._recorded) == _MOST:
            self._recorded, self._stride = self._recorded[::2], 2 * self._stride

    def end_interval(self) -> StepInterval:
        """Return the steps since the last call."""
        steps, passed = self._recorded, self._passed
        self._recorded, self._passed, self._stride = [], 0, 1
        ends = [len(steps) * part // WINDOWS for part in range(WINDOWS + 1)]
        thirds = [time_of(steps[begin:end]) for begin, end in pairwise(ends)]
        mean = sum(steps) / len(steps) if steps else 0.0
        return StepInterval(passed, len(steps), mean, time_of(steps), *thirds)
