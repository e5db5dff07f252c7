"""Totals of this process's training, which the sampler records, and facts that are recorded once.

The frameworks' packages count the observed training, in a run only. Comparisons of runs use these
numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from farandole.job.config.rank_variables import RUN_VARIABLE
from farandole.job.tracking import tracker

STEPS = "training/steps"
EPOCHS = "training/epochs"
SAMPLES = "training/samples"
ROWS_PER_STEP = "training/samples_per_step"
EXCHANGE_BYTES = "training/exchange_bytes"
LEARNING_RATE = "training/learning_rate"


class TrainingTotals:
    """The totals of this process.

    ``samples``: samples that this rank has trained on; each counts once per epoch. ``rows``:
    samples of its latest step. ``epochs``: completed epochs. ``rate``: returns the learning rate,
    or None if it is unknown.
    """

    def __init__(self) -> None:
        self.samples = 0.0
        self.rows = 0.0
        self.epochs = 0
        self.rate: Callable[[], float | None] | None = None

    def values(self, steps: int, nbytes: int) -> dict[str, float]:
        """Return the known totals by the names of their metrics. ``steps``, ``nbytes``: totals of
        steps and of the bytes of collectives.
        """
        rate = self.rate() if self.rate is not None else None
        found = {
            STEPS: float(steps),
            SAMPLES: self.samples,
            ROWS_PER_STEP: self.rows,
            EPOCHS: float(self.epochs),
        }
        found = {name: value for name, value in found.items() if value}
        if steps:
            found[EXCHANGE_BYTES] = float(nbytes)
        if rate is not None:
            found[LEARNING_RATE] = rate
        return found


totals = TrainingTotals()


def belongs_to_run() -> bool:
    """Return whether this process is a rank of a run."""
    return bool(os.environ.get(RUN_VARIABLE))


def record(**values: Any) -> None:
    """Record facts about the training of this rank: JSON data by name. None values are left out."""
    known = {name: value for name, value in values.items() if value is not None}
    here = tracker.current() if belongs_to_run() and known else None
    if here is not None:
        here.record(tracker.TRAINING, values=known)
