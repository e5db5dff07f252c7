"""Counts of a PyTorch training for the run: steps, samples, epochs and the learning rate.

Samples are the rows of the batches that data loaders return while gradients are enabled, so batches
of a validation under ``torch.no_grad()`` do not count. Batches that are read in another way are not
counted.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from farandole.job.report import training_progress
from farandole.job.tracking import training


class TrainingCounts:
    """The counts of this process, which the sampler records."""

    def __init__(self) -> None:
        self._fetched = 0  # rows since the last step
        self._counters: weakref.WeakKeyDictionary[Any, training_progress.Counter] = (
            weakref.WeakKeyDictionary()
        )

    def on_batch(self, batch: Any) -> None:
        if torch.is_grad_enabled():
            self._fetched += rows_of(batch)

    def on_epoch(self) -> None:
        if torch.is_grad_enabled():
            training.totals.epochs += 1

    def after_step(self, optimizer: Any) -> None:
        counter = self._counters.get(optimizer)
        if counter is None:
            counter = self._counters[optimizer] = training_progress.counter()
            if len(self._counters) == 1:
                self._first_step(optimizer)
        counter.steps += 1
        if self._fetched:
            totals = training.totals
            totals.rows = self._fetched
            totals.samples += self._fetched
            self._fetched = 0

    def _first_step(self, optimizer: Any) -> None:
        training.totals.rate = LearningRate(optimizer)
        training.record(
            framework="torch",
            optimizer=type(optimizer).__name__,
            learning_rate=training.totals.rate(),
            batch_size=self._fetched or None,
        )


class LearningRate:
    """The learning rate of an optimizer's first group; its last known value after the optimizer is
    freed. None for an optimizer without a rate.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._last: float | None = None

    def __call__(self) -> float | None:
        optimizer = self._optimizer()
        groups = optimizer.param_groups if optimizer is not None else []
        if groups and groups[0].get("lr") is not None:
            self._last = float(groups[0]["lr"])
        return self._last


def install(counts: TrainingCounts) -> None:
    """Let all data loaders of this process report their batches to ``counts``."""
    original = _BaseDataLoaderIter.__next__

    @functools.wraps(original)
    def following(self: Any) -> Any:
        try:
            batch = original(self)
        except StopIteration:
            counts.on_epoch()
            raise
        counts.on_batch(batch)
        return batch

    _BaseDataLoaderIter.__next__ = following


def rows_of(batch: Any) -> int:
    """Return the rows of a batch: the length of its first tensor or list; 0 if there is none."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.ndim else 0
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if not isinstance(batch, (list, tuple)) or not len(batch):
        return 0
    rows = next((found for each in batch if (found := rows_of(each))), 0)
    return rows or (0 if isinstance(batch, tuple) else len(batch))
