"""The rows and the progress of a rank, and sums over all ranks, for any framework."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import farandole.numpy as hvd
from farandole.estimators.batches import Batches
from farandole.estimators.checkpoint import Checkpoint
from farandole.estimators.progress import Progress
from farandole.estimators.spec import Spec


class Training:
    """A training run on a rank. ``factor``: multiplies the learning rate of one rank."""

    def __init__(self, spec: Spec, rank: int, size: int) -> None:
        self.spec = spec
        self.rank = rank
        self.size = size
        self.batches = Batches(spec.train, spec.columns, spec.train_reading, rank, size)
        self.progress = Progress(spec, rank, self.batches.rows, len(self.batches))
        self.factor = size if spec.scale_lr else 1

    def begin(self) -> Checkpoint | None:
        """Return the checkpoint to resume from, if any, after moving the rows to its position."""
        checkpoint = self.progress.begin()
        if checkpoint is not None:
            self.batches.load(checkpoint.data)
        return checkpoint

    def held(self) -> Batches | None:
        """Return the rows for validation, if any: this rank's part, or all of them if there are
        fewer rows than ranks.
        """
        spec = self.spec
        if spec.validation is None:
            return None
        part = (self.rank, self.size) if spec.validation.rows >= self.size else (0, 1)
        return Batches(spec.validation, spec.columns, spec.validation_reading, *part)

    def seed(self, epoch: int) -> int:
        """Return the seed for an epoch on this rank, so that a resumed training draws the same
        numbers.
        """
        return int(np.random.SeedSequence([self.spec.seed, epoch, self.rank]).generate_state(1)[0])

    def compression(self) -> dict[str, Any]:
        """Return the compression argument of a distributed optimizer; empty without one."""
        return {} if self.spec.compression is None else {"compression": self.spec.compression}


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """Return the sums of each value over all ranks."""
    totals: list[float] = hvd.allreduce(np.array(values, np.float64), op=hvd.Sum).tolist()
    return totals


def mean_over_ranks(of_rank: Mapping[str, float], rows: int) -> dict[str, float]:
    """Return the means over the rows of all ranks; NaN if no rank has any rows.

    ``of_rank``: the means over the ``rows`` rows of this rank.
    """
    *totals, count = sum_over_ranks([*(number * rows for number in of_rank.values()), rows])
    return {
        name: total / count if count else math.nan
        for name, total in zip(of_rank, totals, strict=True)
    }
