"""Callbacks that record the values of Keras's epochs over all ranks, and end training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from farandole.estimators.batches import Batches
from farandole.estimators.progress import parted
from farandole.estimators.trainers.base import Training, mean_over_ranks, sum_over_ranks
from farandole.estimators.trainers.keras.rows import Rows
from farandole.estimators.trainers.keras.state import Rates, saved


def recording_callback(keras: Any, training: Training, rows: Rows, rates: Rates) -> Any:
    """Return the callback that records each epoch's values, and ends training."""
    progress = training.progress
    first = progress.first

    class Epochs(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            progress.begin_epoch(epoch, training.spec.backward_passes)

        def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
            numbers, validation = parted(
                {name: _plain(value) for name, value in (logs or {}).items()}
            )
            if progress.end_epoch(
                epoch,
                numbers,
                validation or None,
                lambda: saved(self.model, rates),
                lambda: saved(self.model, rates),
                rows.ends[epoch - first],
            ):
                self.model.stop_training = True

    return Epochs()


def _plain(value: Any) -> Any:
    """Return a metric as a number, or as a list if it has a value for each class."""
    array = np.asarray(value, np.float64)
    return float(array.reshape(())) if array.size == 1 else array.tolist()


def means_of(keras: Any, rows: Rows, held: Batches | None) -> Any:
    """Return the callback that replaces an epoch's values with means over the rows of all ranks,
    for later callbacks.
    """

    class Means(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            numbers, validation = parted(
                {name: float(value) for name, value in (logs or {}).items() if name != "lr"}
            )
            logs.update(mean_over_ranks(numbers, rows.counts.pop(0)))
            if held is not None and validation:
                means = mean_over_ranks(validation, held.of_rank)
                logs.update({f"val_{name}": value for name, value in means.items()})

    return Means()


class _Exact:
    """Computes losses of an epoch as means over rows, from Keras's running losses since the epoch
    began.

    ``by_batch``: whether Keras weights each batch equally in the loss of one of several outputs,
    regardless of its rows.
    """

    def __init__(self, by_batch: bool) -> None:
        self._by_batch = by_batch
        self._batches = 0
        self._rows = 0
        self._counted = 0.0
        self._totals = dict[str, float]()
        self._exact = dict[str, float]()

    def add(self, logs: Mapping[str, Any], rows: int, counted: float) -> None:
        """Add a batch of ``rows`` rows for Keras, which count as ``counted``."""
        self._batches = self._batches + 1
        self._rows = self._rows + rows
        self._counted = self._counted + counted
        for name, mean in logs.items():
            if name == "loss" or name.endswith("_loss"):
                by_batch = self._by_batch and name != "loss"
                total = float(mean) * (self._batches if by_batch else self._rows)
                own = (total - self._totals.get(name, 0.0)) / (1 if by_batch else rows)
                self._exact[name] = self._exact.get(name, 0.0) + own * counted
                self._totals[name] = total

    def means_over_ranks(self) -> dict[str, float]:
        """Return the losses over the rows of all ranks."""
        names = sorted(self._exact)
        *totals, counted = sum_over_ranks([*(self._exact[name] for name in names), self._counted])
        return {name: total / counted for name, total in zip(names, totals, strict=True)}


def losses_by_row(keras: Any, rows: Rows, held: Batches | None, by_batch: bool) -> Any:
    """Return the callback that replaces losses with means over the rows of all ranks.

    It corrects training losses if ranks have batches of different lengths: such a batch's loss is
    already scaled to the rank's share, and Keras weights it by the rank's rows again. It also
    corrects validation losses if Keras weights the losses of outputs ``by_batch``.
    """

    class Losses(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.training = _Exact(by_batch)
            self.validation: _Exact | None = None

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.training.add(logs or {}, *rows.lengths.popleft())

        def on_test_begin(self, logs: Any = None) -> None:
            if by_batch and held is not None:
                self.validation = _Exact(True)
                self.lengths = held.lengths()

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.validation is not None:
                self.validation.add(logs or {}, self.lengths[batch], self.lengths[batch])

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs.update(self.training.means_over_ranks())
            if self.validation is not None:
                logs.update(
                    {
                        f"val_{name}": mean
                        for name, mean in self.validation.means_over_ranks().items()
                    }
                )

    return Losses()
