"""Detection of ranks that compute for much longer than the others (``--leave-out-stragglers``).

Each rank measures its steps (``step_times``). At a commit, once about ten steps have passed, the
ranks exchange the times in one reduction.
"""

from __future__ import annotations

import json
import time

import numpy as np

from farandole.base.types import DType, ReduceOp
from farandole.checks.exchange import reduce
from farandole.checks.step_times import (
    StepInterval,
    StepTimes,
    StepWindow,
    StragglerSeries,
    commits_until_next,
    others_of,
    windows_of,
)
from farandole.core import kernels
from farandole.job import context
from farandole.job.report import keys, training_progress


class StragglerCheck:
    """The comparisons of one state. ``factor``: see ``windows_of``."""

    def __init__(self, state: object, factor: float) -> None:
        self._state, self._factor = state, factor
        self.reset()

    def reset(self) -> None:
        """Restart with new ranks."""
        self._series, self._times = StragglerSeries(), StepTimes()
        self._commits, self._due = 0, 1
        self._engine = context.engine()
        if self._after_round not in self._engine.round_listeners:
            self._engine.round_listeners.append(self._after_round)

    def _after_round(self) -> None:
        epoch = getattr(self._state, "epoch", None)
        self._times.add(
            time.monotonic(),
            self._engine.blocked,
            training_progress.steps(),
            epoch if type(epoch) is int else None,
        )

    def before_save(self) -> None:
        """Take no action: the ranks are compared after a commit."""

    def after_save(self) -> None:
        """Compare the ranks if a comparison is due. Collective."""
        self._commits += 1
        if self._commits < self._due:
            return
        engine = self._engine
        table = np.zeros((engine.size, len(StepInterval._fields)))
        table[engine.rank] = self._times.end_interval().scaled(1 / self._shares())
        reduce(engine, "elastic.stragglers", table.reshape(-1), DType.FLOAT64, ReduceOp.SUM)
        intervals = [StepInterval(*row) for row in table.tolist()]
        for window in windows_of(intervals, self._factor):
            if self._series.add(window.rank) and context.rank() == 0:
                self._report(window)
        self._due, self._commits = commits_until_next(intervals, self._commits), 0

    def _shares(self) -> int:
        """Return the number of this rank's shares of a fixed global batch; 1 without one."""
        rank, size = self._engine.rank, self._engine.size
        return kernels.shares(context.shares(), size)[rank] if context.shares() else 1

    def _report(self, window: StepWindow) -> None:
        client, rank = context.store(), window.rank
        if client is not None and context.is_elastic():
            facts = {
                "rank": rank,
                "seconds": window.seconds[rank],
                "others": others_of(window.seconds, rank),
                "unit": "step" if self._times.counted else "collectives",
            }
            key = keys.straggler(context.placement().generation, context.commits())
            client.set(key, json.dumps(facts).encode())
