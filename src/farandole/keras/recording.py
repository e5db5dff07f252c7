"""The callbacks that record a ``fit`` in the run: its metrics, samples, steps and settings."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from farandole.job.report import training_progress
from farandole.keras.callbacks import TrackingCallback, together
from farandole.keras.data import digest_of_data
from farandole.keras.optimizer import reducers_of
from farandole.keras.weights import numpy_of

_BATCH = 32  # rows, the default of ``fit`` for arrays
_counters: list[training_progress.Counter] = []  # of all fits with plain optimizers


def recorders(arguments: Mapping[str, Any], users: Sequence[Any]) -> list[Any]:
    """Return the callbacks that record this rank's training.

    ``arguments``: the arguments of ``fit``, with this rank's part of the data. ``users``: the
    callbacks that the program passes.
    """
    tracks = any(isinstance(each, TrackingCallback) for each in users)
    return [*([] if tracks else [TrackingCallback()]), TrainingRecorder(arguments)]


class TrainingRecorder(keras.callbacks.Callback):  # type: ignore[misc]
    """Count samples and epochs, and steps with a plain optimizer; record the settings of a training
    when it begins.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        # imported here because most jobs leave no run
        from farandole.job.tracking import training

        self._training = training
        self._arguments = arguments
        self._batch = float(batch_size(arguments) or 0)
        rows = rows_of(arguments)
        self._rows = math.inf if rows is None else rows
        self._batches = 0  # of this epoch
        self._before = 0.0  # samples before this epoch
        self._counter: training_progress.Counter | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        # an optimizer distributed over one process does not count its steps
        if not together(self._model) or not reducers_of(self._model):
            _counters[:] = _counters or [training_progress.counter()]
            self._counter = _counters[0]
        self._before = self._training.totals.samples
        self._training.record(**settings_of(self._model, self._arguments))
        self._arguments = {}  # the data may be large

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        done, self._batches = batch + 1 - self._batches, batch + 1
        if self._counter is not None:
            self._counter.steps += done
        totals = self._training.totals
        totals.rows = self._batch
        totals.samples = self._before + min(self._batches * self._batch, self._rows)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        totals = self._training.totals
        totals.epochs += 1
        self._before, self._batches = totals.samples, 0


def settings_of(model: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a training that comparisons of runs use, as JSON data.

    ``data`` and ``validation`` are digests of arrays: equal digests mean equal data.
    """
    validation = arguments.get("validation_data")
    optimizer = model.optimizer
    rate = None
    with contextlib.suppress(Exception):  # a custom optimizer may have none
        rate = float(numpy_of(optimizer.learning_rate))
    return {
        "framework": "keras",
        "epochs": int(arguments.get("epochs", 1)),
        "batch_size": batch_size(arguments),
        "rows": rows_of(arguments),
        "data": _digest((arguments.get("x"), arguments.get("y"))),
        "validation": None if validation is None else _digest(validation),
        "validation_rows": rows_of({"x": validation}),
        "optimizer": str(getattr(optimizer, "name", type(optimizer).__name__)),
        "learning_rate": rate,
    }


def rows_of(arguments: Mapping[str, Any]) -> int | None:
    """Return the rows of one epoch; None if the data does not consist of arrays."""
    data = arguments.get("x")
    if isinstance(data, keras.utils.PyDataset):
        return None
    leaves = keras.tree.flatten(data) if data is not None else []
    if not leaves or not all(len(getattr(leaf, "shape", ())) > 0 for leaf in leaves):
        return None
    rows = int(leaves[0].shape[0])
    return math.floor(rows * (1 - float(arguments.get("validation_split") or 0)))


def batch_size(arguments: Mapping[str, Any]) -> int | None:
    """Return the rows of one batch of this rank; None if they are unknown."""
    given = arguments.get("batch_size")
    if given:
        return int(given)
    data: Any = arguments.get("x")
    if rows_of({"x": data}) is not None:
        return _BATCH
    data = getattr(data, "_whole", data)  # this rank's part of a PyDataset
    own = getattr(data, "batch_size", None)
    return int(own) if isinstance(own, int) else _dataset_batch(data)


def _dataset_batch(data: Any) -> int | None:
    """Return the batch size of a tf.data.Dataset, also if its last batch is smaller."""
    spec = getattr(data, "element_spec", None)
    if spec is None:
        return None
    first = keras.tree.flatten(spec)[0]
    rows = first.shape[0] if getattr(first, "shape", None) else None
    if rows is not None:
        return int(rows)
    own = getattr(data, "_batch_size", None)
    if own is not None:
        return int(own)
    inputs = data._inputs() if hasattr(data, "_inputs") else ()
    return next((found for each in inputs if (found := _dataset_batch(each))), None)


def _digest(data: Any) -> str | None:
    digest = digest_of_data(data)
    return None if digest is None else f"{digest:08x}"
