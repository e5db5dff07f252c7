"""The numbers of Keras' epochs: callbacks that note them, over all ranks, and end training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farandole.estimators.batches import Batches
from farandole.estimators.progress import parted
from farandole.estimators.trainers.base import Training
from farandole.estimators.trainers.keras.rows import Rows
from farandole.estimators.trainers.keras.state import Rates, saved
from farandole.estimators.trainers.means import means


def noting_of(keras: Any, training: Training, rows: Rows, rates: Rates) -> Any:
    """The callback that notes each epoch's numbers, and ends training."""
    progress = training.progress
    first = progress.first

    class Epochs(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            progress.begin_epoch(epoch, training.spec.backward_passes)

        def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
            numbers, validation = parted({name: float(value) for name, value in (logs or {}).items()})
            if progress.end_epoch(
                epoch, numbers, validation or None, lambda: saved(self.model, rates),
                lambda: saved(self.model, rates), rows.ends[epoch - first],
            ):  # fmt: skip
                self.model.stop_training = True

    return Epochs()


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
