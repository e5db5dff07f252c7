"""A Keras model (Keras 3 on any backend, or tf_keras), trained by ``fit`` on this rank's rows."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle
import numpy as np

from farandole.errors import DataError, SettingsError
from farandole.estimators.batches import Batch, Batches
from farandole.estimators.loaders.keras import Packed, inputs_of, several
from farandole.estimators.progress import Progress
from farandole.estimators.spec import Result, Spec
from farandole.estimators.trainers.device import pin
from farandole.log import logger


def train(spec: Spec) -> Result | None:
    """On every rank; the result on rank 0."""
    pin(spec.use_gpu)
    packed: Packed = spec.payload["model"]
    keras = packed.package()
    hvd = importlib.import_module("farandole.keras.tf_keras" if packed.backend == "tf_keras" else "farandole.keras")
    hvd.init()
    ranks = hvd.rank(), hvd.size()
    batches = Batches(spec.train, spec.columns, spec.train_reading, *ranks)
    progress = Progress(spec, hvd.rank(), batches.rows)
    found = progress.begin()
    model = packed.open()
    factor = hvd.size() if spec.scale_lr else 1
    with keras.utils.custom_object_scope(cloudpickle.loads(packed.custom)):
        options = compiled(keras, spec.payload)
        plain, rates = options["optimizer"], Rates(options["optimizer"], factor)
        given = {"compression": spec.compression} if spec.compression is not None else {}
        options["optimizer"] = hvd.DistributedOptimizer(
            plain, backward_passes_per_step=spec.backward_passes, average_aggregated_gradients=True, **given
        )
        model.compile(**options)
    if found is not None:
        load(model, found.state)
        batches.load(found.data)
    rates.scale()
    if hvd.rank() == 0:
        _tell_left(spec.backward_passes, len(batches) * max(spec.epochs - progress.first, 0))
    rows = Rows(batches, model, spec, share=True)
    epochs = _epochs(keras, progress, spec, rows, rates)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(),
        *spec.payload["callbacks"], epochs,
    ]  # fmt: skip
    if progress.first < spec.epochs:
        _fit(model, rows, spec, progress.first, callbacks, ranks)
    rates.restore()
    return progress.result(lambda: saved(model, rates))


def _fit(model: Any, rows: Rows, spec: Spec, first: int, callbacks: list[Any], ranks: tuple[int, int]) -> None:
    given: dict[str, Any] = {}
    if spec.validation is not None:
        held = Batches(spec.validation, spec.columns, spec.validation_reading, *ranks)
        given["validation_data"] = _indexed(spec.payload["model"].package(), Rows(held, model, spec, share=False))
    with rows.endless() as batches:
        model.fit(
            batches, steps_per_epoch=len(rows.batches), initial_epoch=first, epochs=spec.epochs, callbacks=callbacks,
            verbose=0, **given,
        )  # fmt: skip


def _tell_left(passes: int, batches: int) -> None:
    if batches % passes:
        logger.warning(
            "backward_passes_per_step=%s does not divide the %s batches of this training: the gradients of the last %s "
            "make no step; choose train_steps_per_epoch, epochs or backward_passes_per_step so that it does",
            passes, batches, batches % passes,
        )  # fmt: skip


class Rows:
    """Batches as Keras takes them. ``ends``: where each epoch left the rows, however far ahead Keras reads. ``share``:
    whether a mean counts as this rank's part of the rows, as the loss of training does."""

    def __init__(self, batches: Batches, model: Any, spec: Spec, *, share: bool) -> None:
        self.batches, self.ends = batches, list[dict[str, int]]()
        self._model, self._spec, self._share = model, spec, share
        self._weighted = spec.columns.weight is not None or (share and batches.uneven)
        self._lock, self._place = threading.Lock(), -1
        self._iterator: Iterator[Batch] = iter(())

    @contextlib.contextmanager
    def endless(self) -> Iterator[Iterator[Any]]:
        """Epoch after epoch: Keras is told how many batches make one."""
        made = self._epochs()
        try:
            yield made
        finally:
            with contextlib.suppress(ValueError):  # a thread of Keras is in it
                made.close()  # type: ignore[attr-defined]

    def _epochs(self) -> Iterator[Any]:
        while True:
            length = len(self.batches)
            for number, batch in enumerate(self.batches, 1):
                if number == length:
                    self.ends.append(self.batches.state())
                yield self.given(batch)

    def at(self, index: int) -> tuple[Any, ...]:
        """The batch of that number, of the first rows: Keras looks at some of them more than once."""
        with self._lock:
            if index != self._place:
                self.batches.rewind()
                self._iterator = itertools.islice(self.batches, index, None)
            self._place = index + 1
            return self.given(next(self._iterator))

    def given(self, batch: Batch) -> tuple[Any, ...]:
        """Inputs and labels, and weights if there are any."""
        columns, payload = self._spec.columns, self._spec.payload
        inputs = inputs_of(self._model, columns.features, batch.inputs, payload["categories"])
        labels = labels_of(self._spec, batch)
        if not self._weighted:
            return inputs, labels[0] if len(labels) == 1 else labels
        share = np.full(len(labels[0]), batch.share if self._share else 1.0, np.float32)
        weight = share if batch.weight is None else share * batch.weight
        return (inputs, labels[0], weight) if len(labels) == 1 else (inputs, labels, [weight] * len(labels))


def _indexed(keras: Any, rows: Rows) -> Any:
    """Batches by their numbers, which Keras goes through anew for each validation."""
    base = getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence  # of Keras 2

    class Indexed(base):  # type: ignore[valid-type,misc]
        sharded = True  # not to be dealt to ranks again

        def __len__(self) -> int:
            return len(rows.batches)

        def __getitem__(self, index: int) -> Any:
            return rows.at(index)

    return Indexed()


def labels_of(spec: Spec, batch: Batch) -> list[Any]:
    """Labels as numbers that losses take."""
    shapes = spec.payload["label_shapes"] or [None] * len(batch.labels)
    found = []
    for label, shape in zip(batch.labels, shapes, strict=True):
        label = label if label.dtype.kind in "iu" else label.astype(np.float32, copy=False)
        found.append(label if shape is None else label.reshape(len(label), *[each for each in shape if each != -1]))
    return found


def _epochs(keras: Any, progress: Progress, spec: Spec, rows: Rows, rates: Rates) -> Any:
    """The callback that notes each epoch's numbers, and ends training."""
    size, first = len(rows.batches), progress.first

    class Epochs(keras.callbacks.Callback):  # type: ignore[misc]
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            progress.step(self.epoch, batch, rows.batches.rows // max(size, 1))

        def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
            numbers = {name: float(value) for name, value in (logs or {}).items()}
            validation = {name[4:]: value for name, value in numbers.items() if name.startswith("val_")}
            training = {name: value for name, value in numbers.items() if not name.startswith("val_")}
            if progress.end_epoch(
                epoch, training, validation or None, lambda: saved(self.model, rates),
                lambda: saved(self.model, rates), rows.ends[epoch - first],
            ):  # fmt: skip
                self.model.stop_training = True

    return Epochs()


class Rates:
    """An optimizer's learning rate: that of one rank, as it is kept, and ``factor`` times that, in training. A schedule
    stays as it is."""

    def __init__(self, optimizer: Any, factor: int) -> None:
        found = getattr(optimizer, "_learning_rate", None)
        self.variable = found if hasattr(found, "assign") else None
        self.factor = factor
        self._one = 0.0 if self.variable is None else float(np.asarray(self.variable))

    def scale(self) -> None:
        if self.variable is not None:
            self._one = float(np.asarray(self.variable))
            self.variable.assign(self._one * self.factor)

    def restore(self) -> None:
        if self.variable is not None:
            self.variable.assign(self.one(float(np.asarray(self.variable))))
            self.factor = 1

    def one(self, rate: float) -> float:
        """Of one rank, without a rounding error where nothing has changed it."""
        return self._one if rate == float(np.float32(self._one * self.factor)) else rate / self.factor


def compiled(keras: Any, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``compile``: what the model was compiled with, and what the estimator was given instead."""
    options: dict[str, Any] = keras.saving.deserialize_keras_object(dict(payload["compiled"] or {}))
    options.update({name: value for name, value in payload["options"].items() if value is not None})
    options["optimizer"] = keras.optimizers.get(options["optimizer"])
    return options


def saved(model: Any, rates: Rates) -> bytes:
    """Weights and the optimizer's variables."""
    optimizer = [np.asarray(each) for each in _variables(model.optimizer)]
    if rates.variable is not None:
        for place, variable in enumerate(_variables(model.optimizer)):
            if variable is rates.variable:
                optimizer[place] = np.asarray(rates.one(float(optimizer[place])), optimizer[place].dtype)
    file = io.BytesIO()
    arrays: dict[str, Any] = {f"w{place}": each for place, each in enumerate(model.get_weights())}
    arrays.update({f"o{place}": each for place, each in enumerate(optimizer)})
    np.savez(file, **arrays)
    return file.getvalue()


def load(model: Any, state: bytes) -> None:
    """What ``saved`` gave, into a compiled model."""
    with np.load(io.BytesIO(state)) as arrays:
        weights = [arrays[f"w{place}"] for place in range(sum(name[0] == "w" for name in arrays))]
        optimizer = [arrays[name] for name in sorted((n for n in arrays if n[0] == "o"), key=lambda n: int(n[1:]))]
    given = len(model.get_weights())
    if given != len(weights):
        raise DataError(
            f"the model that was trained has {len(weights)} arrays of weights, and the one that was given {given}: "
            "give a model that is built (with an Input layer, or after model.build(shape))"
        )
    model.set_weights(weights)
    if not getattr(model.optimizer, "built", False):
        model.optimizer.build(model.trainable_variables)
    for variable, value in zip(_variables(model.optimizer), optimizer, strict=True):
        variable.assign(value)


def _variables(optimizer: Any) -> list[Any]:
    """Those of an optimizer, but for gradients of this rank that it has added up and not applied."""
    found = optimizer.variables
    pending: set[int] = set()
    each = optimizer
    while each is not None:  # optimizers that scale losses have another one
        pending.update(id(variable) for variable in getattr(each, "_accumulated_gradients", None) or ())
        each = getattr(each, "inner_optimizer", None)
    return [variable for variable in (found() if callable(found) else found) if id(variable) not in pending]


def _build(model: Any, batch: Batch) -> None:
    """A sequence of layers that has not seen an input, for any number of rows. Others are built by a call."""
    if not model.built and type(model).__name__ == "Sequential" and len(batch.inputs) == 1:
        model.build((None, *batch.inputs[0].shape[1:]))


def check(spec: Spec, batch: Batch, model: Any) -> list[tuple[int, ...]]:
    """Run ``model`` and the losses once, with these rows; the shape of a row of each output."""
    keras = spec.payload["model"].package()
    names = spec.columns.features
    told = ", ".join(
        f"{name} {each.dtype}{list(each.shape[1:])}" for name, each in zip(names, batch.inputs, strict=True)
    )
    try:
        _build(model, batch)
        found = several(model(inputs_of(model, names, batch.inputs, spec.payload["categories"]), training=False))
    except Exception as error:
        raise DataError(f"the model cannot take the features {told}: {type(error).__name__}: {error}") from error
    labels = labels_of(spec, batch)
    if len(found) != len(labels):
        raise DataError(f"the model has {len(found)} outputs for {len(labels)} label columns: {spec.columns.labels}")
    shapes = [tuple(each.shape)[1:] for each in found]
    try:
        losses = several(compiled(keras, spec.payload).get("loss"))
        functions = [keras.losses.get(each) for each in (losses if len(losses) == len(found) else losses * len(found))]
    except (ValueError, TypeError) as error:
        raise SettingsError(f"loss={spec.payload['options']['loss']!r}: {error}") from error
    for name, label, output, function in zip(spec.columns.labels, labels, found, functions, strict=True):
        try:
            function(label, output)
        except Exception as error:
            raise DataError(
                f"the loss cannot take outputs of shape {tuple(output.shape)[1:]} and label {name} "
                f"{label.dtype}{list(label.shape[1:])}: {type(error).__name__}: {error}"
            ) from error
    return shapes
