"""The numbers of Keras' epochs: callbacks that note them, over all ranks, and end training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from farandole.estimators.batches import Batches
from farandole.estimators.progress import parted
from farandole.estimators.trainers.base import Training
from farandole.estimators.trainers.keras.rows import Rows
from farandole.estimators.trainers.keras.state import Rates, saved
from farandole.estimators.trainers.means import means, sums


def noting_of(keras: Any, training: Training, rows: Rows, rates: Rates) -> Any:
    """The callback that notes each epoch's numbers, and ends training."""
    progress = training.progress
    first = progress.first

    class Epochs(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            progress.begin_epoch(epoch, training.spec.backward_passes)

        def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
            numbers, validation = parted({name: _plain(value) for name, value in (logs or {}).items()})
            if progress.end_epoch(
                epoch, numbers, validation or None, lambda: saved(self.model, rates),
                lambda: saved(self.model, rates), rows.ends[epoch - first],
            ):  # fmt: skip
                self.model.stop_training = True

    return Epochs()


def _plain(value: Any) -> Any:
    """A metric as a number, or a list where it gives one for each class."""
    found = np.asarray(value, np.float64)
    return float(found.reshape(())) if found.size == 1 else found.tolist()


def means_of(keras: Any, rows: Rows, held: Batches | None) -> Any:
    """The callback that makes the numbers of an epoch, for those after it, means over the rows of all ranks."""

    class Means(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            numbers, validation = parted({name: float(value) for name, value in (logs or {}).items() if name != "lr"})
            logs.update(means(numbers, rows.counts.pop(0)))
            if held is not None and validation:
                found = means(validation, held.of_rank)
                logs.update({f"val_{name}": value for name, value in found.items()})

    return Means()


def losses_of_uneven(keras: Any, rows: Rows) -> Any:
    """The callback that makes losses of training means over the rows of all ranks where ranks have batches of other
    lengths. Such a batch's loss is one of the rank's part already, and Keras counts it by the rank's rows once more."""

    class Losses(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.seen, self.counted = 0, 0.0
            self.totals, self.exact = dict[str, float](), dict[str, float]()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            length, even = rows.lengths.popleft()
            self.seen, self.counted = self.seen + length, self.counted + even
            for name, mean in (logs or {}).items():  # since the epoch began
                if name == "loss" or name.endswith("_loss"):
                    total = float(mean) * self.seen
                    own = (total - self.totals.get(name, 0.0)) / length
                    self.exact[name] = self.exact.get(name, 0.0) + own * even
                    self.totals[name] = total

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            names = sorted(self.exact)
            *totals, counted = sums([*(self.exact[name] for name in names), self.counted])
            logs.update({name: total / counted for name, total in zip(names, totals, strict=True)})

    return Losses()
