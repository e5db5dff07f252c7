"""Detects ranks that compute for much longer than the others (``--leave-out-stragglers``).

A step takes the same time on all ranks, because they wait for the slowest one. The computing time
of a rank is the time of its steps minus the time that it has waited for others, which the engine
measures anyway. At the end of each window of commits the ranks exchange these times in one
reduction.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from statistics import median

import numpy as np

from farandole.base.types import DType, ReduceOp
from farandole.checks.exchange import reduce
from farandole.job import context
from farandole.job.report import keys

WINDOW = 10  # commits
WINDOWS = 3  # in a row, in which one rank is the slowest by the factor


def straggler_of(seconds: Sequence[float], factor: float) -> int:
    """Return the rank that computes for more than ``factor`` times the median of the others; -1 for
    none. Pure.

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


class StragglerCheck:
    """The windows of one state. ``factor``: see ``straggler_of``."""

    def __init__(self, state: object, factor: float) -> None:
        self._factor = factor
        self.reset()

    def reset(self) -> None:
        """Start again with new ranks."""
        self._series = StragglerSeries()
        self._began: tuple[float, float] | None = None  # the time, and the seconds waited so far

    def before_save(self) -> None:
        """Take no action: windows end after a commit."""

    def after_save(self) -> None:
        """Compare the ranks at the end of a window. Collective."""
        if (context.commits() + 1) % WINDOW:
            return
        engine, before = context.engine(), self._began
        now = self._began = time.monotonic(), engine.waited
        table = np.zeros(engine.size)
        if before is not None:
            own = now[0] - before[0] - (now[1] - before[1])
            table[engine.rank] = max(own / WINDOW, 1e-9)
        reduce(engine, "elastic.stragglers", table, DType.FLOAT64, ReduceOp.SUM)
        rank = straggler_of(table.tolist(), self._factor)
        if self._series.add(rank) and context.rank() == 0:
            self._report(rank, table.tolist())

    def _report(self, rank: int, seconds: Sequence[float]) -> None:
        client = context.store()
        if client is not None and context.is_elastic():
            others = [each for other, each in enumerate(seconds) if each > 0.0 and other != rank]
            facts = {"rank": rank, "seconds": seconds[rank], "others": median(others)}
            key = keys.straggler(context.placement().generation, context.commits())
            client.set(key, json.dumps(facts).encode())
