"""Detection of ranks that compute for much longer than the others (``--leave-out-stragglers``).

A step takes the same time on all ranks, because they wait for the slowest one. The computing time
of a rank is the duration of its steps minus its waiting time, which the engine measures anyway. At
the end of each window of commits the ranks exchange these times in one reduction.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from statistics import median

import numpy as np

from farandole.base.types import DType, ReduceOp
from farandole.checks.exchange import reduce
from farandole.core import kernels
from farandole.job import context
from farandole.job.report import keys

WINDOW = 10  # commits
# Commits after a change of the ranks before a rank may be a straggler, without and with epochs.
WARM_UP, LONG_WARM_UP = 100, 1000
WINDOWS = 3  # consecutive windows in which one rank is slowest by the factor


def straggler_of(seconds: Sequence[float], factor: float) -> int:
    """Return the rank that computes for more than ``factor`` times the median of the other ranks;
    -1 for none. Pure.

    ``seconds``: by rank, the time of a step; 0 for a rank that has not completed a window.
    """
    known = [each for each in seconds if each > 0.0]
    if len(known) < 2:
        return -1
    slowest = max(range(len(seconds)), key=lambda rank: seconds[rank])
    others = [each for rank, each in enumerate(seconds) if each > 0.0 and rank != slowest]
    return slowest if seconds[slowest] > factor * median(others) else -1


class StragglerSeries:
    """The stragglers of successive windows. Pure."""

    def __init__(self) -> None:
        self._rank, self._count = -1, 0

    def add(self, rank: int) -> bool:
        """Add the straggler of a window; -1 for none. Return whether it was the straggler in the
        last ``WINDOWS`` windows.
        """
        self._count = self._count + 1 if rank == self._rank else 1
        self._rank = rank
        return rank >= 0 and self._count == WINDOWS


class CommitTimes:
    """A rank's computing times between commits. Pure.

    The shortest time of a window is a rank's time without interruptions. A slow host is slow in
    each step, but evaluations and checkpoints on one rank, or a stalled loader, lengthen only some
    steps. An interval in which an epoch ends does not count.
    """

    def __init__(self) -> None:
        self._last: tuple[float, float, int | None] | None = None
        self._first_epoch: int | None = None
        self._commits = 0
        self._shortest = 0.0

    def add(self, now: float, waited: float, epoch: int | None) -> None:
        """Add a commit.

        ``now``: its time in seconds. ``waited``: the seconds that the rank has waited for others so
        far. ``epoch``: the state's epoch; None if it has none.
        """
        last, self._last = self._last, (now, waited, epoch)
        self._commits += 1
        if last is None:
            self._first_epoch = epoch
        elif epoch == last[2]:
            own = max(now - last[0] - (waited - last[1]), 1e-9)
            self._shortest = min(own, self._shortest or own)

    def end_window(self) -> float:
        """Return the shortest time since the last call, in seconds; 0 if there is none."""
        found, self._shortest = self._shortest, 0.0
        return found

    @property
    def is_warm(self) -> bool:
        """True after the first epoch, in which ranks compile and fill their caches, or after
        ``LONG_WARM_UP`` commits; after ``WARM_UP`` commits without epochs.
        """
        epoch = self._last[2] if self._last is not None else None
        if epoch is None:
            return self._commits > WARM_UP
        return epoch != self._first_epoch or self._commits > LONG_WARM_UP


class StragglerCheck:
    """The windows of one state. ``factor``: see ``straggler_of``."""

    def __init__(self, state: object, factor: float) -> None:
        self._state, self._factor = state, factor
        self.reset()

    def reset(self) -> None:
        """Restart with new ranks."""
        self._series, self._times = StragglerSeries(), CommitTimes()

    def before_save(self) -> None:
        """Take no action: windows end after a commit."""

    def after_save(self) -> None:
        """Compare the ranks at the end of a window. Collective."""
        engine, epoch = context.engine(), getattr(self._state, "epoch", None)
        self._times.add(time.monotonic(), engine.waited, epoch if type(epoch) is int else None)
        if (context.commits() + 1) % WINDOW:
            return
        table = np.zeros(engine.size)
        table[engine.rank] = self._times.end_window() / self._shares(engine.rank, engine.size)
        reduce(engine, "elastic.stragglers", table, DType.FLOAT64, ReduceOp.SUM)
        rank = straggler_of(table.tolist(), self._factor) if self._times.is_warm else -1
        if self._series.add(rank) and context.rank() == 0:
            self._report(rank, table.tolist())

    @staticmethod
    def _shares(rank: int, size: int) -> int:
        """Return the number of this rank's shares of a fixed global batch; 1 without one."""
        return kernels.shares(context.shares(), size)[rank] if context.shares() else 1

    def _report(self, rank: int, seconds: Sequence[float]) -> None:
        client = context.store()
        if client is not None and context.is_elastic():
            others = [each for other, each in enumerate(seconds) if each > 0.0 and other != rank]
            facts = {"rank": rank, "seconds": seconds[rank], "others": median(others)}
            key = keys.straggler(context.placement().generation, context.commits())
            client.set(key, json.dumps(facts).encode())
