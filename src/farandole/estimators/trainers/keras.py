"""A Keras model (Keras 3 on any backend, or tf_keras), trained by ``fit`` on this rank's rows."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np

from farandole.data import ParquetData
from farandole.errors import DataError, SettingsError
from farandole.estimators.batches import Batch, Batches, first
from farandole.estimators.loaders.keras import Packed, inputs_of, several
from farandole.estimators.loaders.shapes import fits
from farandole.estimators.progress import Progress
from farandole.estimators.spec import Result, Spec
from farandole.estimators.trainers.keras_state import Rates, go_on, load, saved
from farandole.frontend.objects import allgather_object
from farandole.log import logger


def train(spec: Spec) -> Result | None:
    """On every rank; the result on rank 0."""
    packed: Packed = spec.payload["model"]
    keras = packed.package()
    hvd = importlib.import_module("farandole.keras.tf_keras" if packed.backend == "tf_keras" else "farandole.keras")
    hvd.init()
    ranks = hvd.rank(), hvd.size()
    batches = Batches(spec.train, spec.columns, spec.train_reading, *ranks)
    progress = Progress(spec, hvd.rank(), batches.rows, len(batches))
    found = progress.begin()
    numbers = np.random.default_rng([spec.seed, progress.first, hvd.rank()])
    seed_all(keras, int(numbers.integers(2**31)))
    model = packed.open()
    _seed(model, numbers)
    if "heads" not in spec.payload:  # the driver could read no rows
        check(spec, first(spec.train, spec.columns), model)
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
    else:
        go_on(model, spec.payload["slots"])
    rates.scale()
    for each in spec.payload["callbacks"]:
        if spec.scale_lr and rates.fixed and isinstance(each, hvd.callbacks.LearningRateScheduleCallback):
            each.schedule = each.schedule._replace(initial_lr=rates.given * factor)  # as in Horovod
    if hvd.rank() == 0:
        _tell_left(spec.backward_passes, len(batches) * max(spec.epochs - progress.first, 0))
    rows = Rows(batches, model, spec, share=True)
    epochs = _epochs(keras, progress, spec, rows, rates)
    held = None if spec.validation is None else _held(spec, spec.validation, *ranks)
    means = _means(keras, rows, held) if packed.backend == "tf_keras" else hvd.callbacks.MetricAverageCallback()
    if progress.first < spec.epochs:
        with _own_callbacks(keras, spec, hvd.rank()) as own:
            callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), means, *own, epochs]
            _fit(model, rows, spec, progress.first, callbacks, held)
    rates.restore()
    return progress.result(lambda: saved(model, rates))


def seed_all(keras: Any, seed: int) -> None:
    """``keras.utils.set_random_seed``, without TensorFlow where nobody has imported it: Keras imports it to seed it
    wherever it is installed, on any backend, which takes some 500 MB of a rank."""
    module: Any = sys.modules.get("keras.src.utils.rng_utils")  # of Keras 3; its ``tf`` imports when it is asked for
    if "tensorflow" in sys.modules or not hasattr(module, "tf"):
        keras.utils.set_random_seed(seed)
        return
    tensorflow, module.tf = module.tf, SimpleNamespace(available=False)
    try:
        keras.utils.set_random_seed(seed)
    finally:
        module.tf = tensorflow


def _seed(model: Any, numbers: np.random.Generator) -> None:
    """Give the layers that have no seed of the user's new ones: those of Keras 3 came with the model."""
    for layer in model._flatten_layers():
        for each in getattr(layer, "_seed_generators", ()):
            if each.get_config()["seed"] is None:
                each.state.assign([int(numbers.integers(2**31)), 0])


def _held(spec: Spec, data: ParquetData, rank: int, size: int) -> Batches:
    """Rows for validation: a rank's part, or all of them where there are fewer than ranks."""
    part = (rank, size) if data.rows >= size else (0, 1)
    return Batches(data, spec.columns, spec.validation_reading, *part)


def _fit(model: Any, rows: Rows, spec: Spec, first: int, callbacks: list[Any], held: Batches | None) -> None:
    given: dict[str, Any] = {}
    if held is not None:
        given["validation_data"] = _indexed(spec.payload["model"].package(), Rows(held, model, spec, share=False))
    with rows.endless() as batches:
        model.fit(
            batches, steps_per_epoch=len(rows.batches), initial_epoch=first, epochs=spec.epochs, callbacks=callbacks,
            verbose=0, **given,
        )  # fmt: skip


@contextlib.contextmanager
def _own_callbacks(keras: Any, spec: Spec, rank: int) -> Iterator[list[Any]]:
    """The user's callbacks. Those of Keras that write a file do it on rank 0 alone: ranks of one host would write over
    each other's. With a store, TensorBoard writes to the logs of the run there."""
    store, kind = spec.store, keras.callbacks.TensorBoard
    writers = {kind, keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger}  # not subclasses, which may do more
    given = [each for each in spec.payload["callbacks"] if not rank or type(each) not in writers]
    boards = [each for each in given if isinstance(each, kind)]
    if not boards or store is None or not store.saving_runs():
        yield given
        return
    others = [each for each in given if not isinstance(each, kind)]
    if rank:
        yield others
        return
    sync = store.sync_fn(spec.run_id)
    with store.get_local_output_dir_fn(spec.run_id)() as folder:
        for each in boards:
            each.log_dir = os.path.join(folder, store.get_logs_subdir())
        yield [*others, *boards, keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: sync(folder))]
        sync(folder)  # with what is written when training ends


def _tell_left(passes: int, batches: int) -> None:
    if batches % passes:
        logger.warning(
            "backward_passes_per_step=%s does not divide the %s batches of this training: the gradients of the last %s "
            "make no step; choose train_steps_per_epoch, epochs or backward_passes_per_step so that it does",
            passes, batches, batches % passes,
        )  # fmt: skip


class Rows:
    """Batches as Keras takes them. ``ends``: where each epoch left the rows, however far ahead Keras reads, and
    ``counts``: how many it had. ``share``: whether a mean counts as this rank's part of the rows, as the loss of
    training does."""

    def __init__(self, batches: Batches, model: Any, spec: Spec, *, share: bool) -> None:
        self.batches, self.ends, self.counts = batches, list[dict[str, int]](), list[int]()
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
            length, count = len(self.batches), 0
            for number, batch in enumerate(self.batches, 1):
                count += batch.rows
                if number == length:
                    self.ends.append(self.batches.state())
                    self.counts.append(count)
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
        inputs = tuple(inputs) if isinstance(inputs, list) else inputs  # tf.data takes a list for one array
        labels = labels_of(self._spec, batch)
        heads = payload.get("heads")

        def like_outputs(values: list[Any]) -> Any:
            return dict(zip(heads, values, strict=True)) if heads else tuple(values) if len(values) > 1 else values[0]

        if not self._weighted:
            return inputs, like_outputs(labels)
        share = np.full(len(labels[0]), batch.share if self._share else 1.0, np.float32)
        weight = share if batch.weight is None else share * batch.weight
        return inputs, like_outputs(labels), like_outputs([weight] * len(labels))


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
    first = progress.first

    class Epochs(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            progress.begin_epoch(epoch, spec.backward_passes)

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


def _means(keras: Any, rows: Rows, held: Batches | None) -> Any:
    """A callback that makes the numbers of an epoch, for those after it, means over the rows of all ranks."""

    class Means(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            mine = {name: float(value) for name, value in (logs or {}).items() if name != "lr"}
            counts = {"train": rows.counts.pop(0), "val": 0 if held is None else held.of_rank}
            everybody = allgather_object((mine, counts))
            for name in mine:
                part = "val" if name.startswith("val_") else "train"
                weights = [float(count[part]) for _, count in everybody]
                logs[name] = float(np.average([numbers[name] for numbers, _ in everybody], weights=weights))

    return Means()


def compiled(keras: Any, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``compile``: what the model was compiled with, and what the estimator was given instead."""
    options: dict[str, Any] = keras.saving.deserialize_keras_object(dict(payload["compiled"] or {}))
    heads = payload.get("heads") or ()
    for name, value in payload["options"].items():
        if heads and isinstance(value, list | tuple) and len(value) == len(heads):  # one for each label
            value = dict(zip(heads, value, strict=True))
        if value is not None:
            options[name] = value
    options["optimizer"] = keras.optimizers.get(options["optimizer"])
    return options


def _build(model: Any, batch: Batch) -> None:
    """A sequence of layers that has not seen an input, for any number of rows. Others are built by a call."""
    if not model.built and type(model).__name__ == "Sequential" and len(batch.inputs) == 1:
        model.build((None, *batch.inputs[0].shape[1:]))


def by_name(spec: Spec, batch: Batch, model: Any) -> Any:
    """``model``, or one that these rows have built, with a dict of features by their names: where it is not built, and
    takes no list of them. Its file tells from then on."""
    names, categories, packed = spec.columns.features, spec.payload["categories"], spec.payload["model"]
    if model.built or isinstance(model, packed.package().Sequential) or getattr(model, "inputs", None):
        return model
    try:
        packed.open()(inputs_of(model, names, batch.inputs, categories), training=False)
    except Exception:
        other = packed.open()
        arrays = (inputs_of(model, [name], [each], categories) for name, each in zip(names, batch.inputs, strict=True))
        with contextlib.suppress(Exception):  # who takes neither is told of the list
            other(dict(zip(names, arrays, strict=True)), training=False)
            return other
    return model


def check(spec: Spec, batch: Batch, model: Any) -> list[tuple[int, ...]]:
    """Run ``model`` and the losses once, with these rows; the shape of a row of each output."""
    keras = spec.payload["model"].package()
    names = spec.columns.features
    told = ", ".join(
        f"{name} {each.dtype}{list(each.shape[1:])}" for name, each in zip(names, batch.inputs, strict=True)
    )
    try:
        _build(model, batch)
        outputs = model(inputs_of(model, names, batch.inputs, spec.payload["categories"]), training=False)
    except Exception as error:
        raise DataError(f"the model cannot take the features {told}: {type(error).__name__}: {error}") from error
    found, labels = several(outputs, spec.columns.labels), labels_of(spec, batch)
    if len(found) != len(labels):
        raise DataError(f"the model has {len(found)} outputs for {len(labels)} label columns: {spec.columns.labels}")
    spec.payload["heads"] = heads_of(outputs, spec.columns.labels)
    shapes = [tuple(each.shape)[1:] for each in found]
    given = spec.payload["label_shapes"] or [None] * len(labels)
    spec.payload["label_shapes"] = [_like(*each) for each in zip(given, labels, shapes, strict=True)]
    labels = labels_of(spec, batch)
    try:
        chosen = _losses(compiled(keras, spec.payload).get("loss"), outputs, model, spec)
        functions = [keras.losses.get(each) for each in chosen]
    except (ValueError, TypeError) as error:
        raise SettingsError(f"loss={spec.payload['options']['loss']!r}: {error}") from error
    for name, label, output, function in zip(spec.columns.labels, labels, found, functions, strict=True):
        if function is None:  # an output that is not trained
            continue
        try:
            function(*(_number(keras, each) for each in (label, output)))
        except Exception as error:
            raise DataError(
                f"the loss cannot take outputs of shape {tuple(output.shape)[1:]} and label {name} "
                f"{label.dtype}{list(label.shape[1:])}: {type(error).__name__}: {error}"
            ) from error
    return shapes


def _number(keras: Any, value: Any) -> Any:
    """As Keras 3 hands it to losses: functions of the user's own need not take NumPy's arrays."""
    return keras.ops.convert_to_tensor(value, keras.backend.floatx()) if hasattr(keras, "ops") else value


def _like(given: Any, label: Any, output: tuple[int, ...]) -> Any:
    """The shape of a label: the user's, or that of an output that it fits. Metrics and losses of one's own do not
    match them: a row of labels minus a column of outputs is a table."""
    return output if given is None and fits(label.shape[1:], output) else given


def heads_of(outputs: Any, labels: Sequence[str]) -> tuple[str, ...]:
    """The names of outputs that come as a dict, in the order of the labels; none for other outputs. DataError if they
    are not those of the labels: frameworks sort the keys of a dict, so an order tells nothing."""
    if not isinstance(outputs, Mapping) or len(outputs) == 1:
        return ()
    if set(outputs) != set(labels):
        raise DataError(
            f"the model's outputs are a dict of {', '.join(outputs)}, and the label columns are {', '.join(labels)}: "
            "give outputs the names of their labels, or let the model give a list, in the order of label_cols"
        )
    return tuple(labels)


def _losses(given: Any, outputs: Any, model: Any, spec: Spec) -> list[Any]:
    """The loss of each label, as Keras pairs them with the outputs. ValueError for one of an unknown output."""
    heads, count = spec.payload["heads"], len(spec.columns.labels)
    if heads and isinstance(given, list | tuple) and len(given) == count:  # of compile(), and sorted
        given = dict(zip(sorted(heads), given, strict=True))
    if isinstance(given, Mapping):
        own = list(outputs) if isinstance(outputs, Mapping) else getattr(model, "output_names", None)
        names = list(heads or own or given)
        if not set(given) <= set(names):
            raise ValueError(f"the outputs are {', '.join(names)}")
        return [given.get(name) for name in names]
    losses = several(given)
    return losses if len(losses) == count else losses * count
