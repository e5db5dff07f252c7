"""``model.fit`` of Keras 2 in an elastic job. In other jobs ``fit`` stays Keras's own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from farandole.core.api.ops import WORLD
from farandole.job import context
from farandole.job.config import Connection
from farandole.keras.elastic_fit.data import ChosenBatches, Source, Tools, source_of
from farandole.keras.elastic_fit.loop import ElasticFit, Kit
from farandole.keras.elastic_fit.progress import FitProgress
from farandole.keras.tf_keras.elastic import KerasState
from farandole.keras.tf_keras.optimizer import optimizers_of, state_of
from farandole.strategies.shares import block


class FitState2(FitProgress, KerasState):
    """The state of one ``fit`` of Keras 2."""


class _Chosen2(ChosenBatches, tf_keras.utils.Sequence):  # type: ignore[misc]
    """The chosen batches of a Sequence."""

    def __init__(self, whole: Any, numbers: Sequence[int]) -> None:
        self._whole, self._numbers = whole, numbers


def _take(data: Any, rows: Any) -> Any:
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    return tf.gather(data, rows) if tf.is_tensor(data) else data[rows]


_TOOLS = Tools(
    tf.nest.flatten,
    tf.nest.map_structure,
    _take,
    tf_keras.utils.Sequence,
    len,
    _Chosen2,
    lambda data, rank, size: data.shard(size, rank),
)
_COUNTERS = "_maybe_load_initial_counters_from_ckpt"  # Keras's ``fit`` asks it where to begin


def _ignore_backup(model: Any) -> None:
    object.__setattr__(model, _COUNTERS, lambda steps, initial_epoch: (initial_epoch, 0))


_KIT = Kit(
    tf_keras.callbacks.Callback,
    tf_keras.callbacks.CallbackList,
    tf_keras.callbacks.History,
    tf_keras.callbacks.ProgbarLogger,
    lambda callback: None,  # a step is complete when it returns
    _ignore_backup,
)


def install() -> None:
    """Wrap ``fit``, once per process, in an elastic job."""
    original = tf_keras.Model.fit
    if not hasattr(original, "_farandole"):

        @functools.wraps(original)
        def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not _continues(self):
                return original(self, *args, **kwargs)
            return _fit(original, inspect.signature(original).bind(self, *args, **kwargs).arguments)

        fit._farandole = True  # type: ignore[attr-defined]
        tf_keras.Model.fit = fit


def _continues(model: Any) -> bool:
    """See ``farandole.keras.elastic_fit.keras_3.continues``."""
    if not context.is_initialized() or not context.keeps_commits():
        return False
    states = [state_of(optimizer) for optimizer in optimizers_of(model)]
    sets = [state.reducer.options.process_set for state in states if state is not None]
    return (
        bool(sets)
        and all(each is WORLD for each in sets)
        and not context.object_names().is_within
        and tf.executing_eagerly()
    )


def _fit(original: Any, arguments: dict[str, Any]) -> Any:
    model = arguments["self"]
    _split_validation(arguments)
    given: Any = arguments.get("callbacks")
    users = given.callbacks if hasattr(given, "callbacks") else tf.nest.flatten(given or [])
    source = source_of(arguments, False, 1 + Connection.from_env().number(context.rank()), _TOOLS)
    _build(model, source)
    epoch = int(arguments.get("initial_epoch", 0))
    state = FitState2(model, epoch=epoch, batch=0, done=0, started=False, finished=False)
    fit = ElasticFit(_KIT, state, original, arguments, users, source)
    state.follow([*fit.users, fit.history], lambda: _metrics_of(model), lambda each: each.numpy())

    def attempt() -> None:
        vars(model).pop("_eval_data_handler", None)  # of a fit that was interrupted
        fit.train(block(context.rank(), context.size(), context.size()))

    try:
        return fit.run(attempt)
    finally:
        vars(model).pop(_COUNTERS, None)


def _metrics_of(model: Any) -> list[Any]:
    return [variable for metric in model.metrics for variable in metric.variables]


def _split_validation(arguments: dict[str, Any]) -> None:
    """Take ``validation_split`` from the end of arrays, before their order changes."""
    share = arguments.get("validation_split")
    if not share or arguments.get("validation_data") is not None:
        return
    data = {name: arguments.get(name) for name in ("x", "y", "sample_weight")}
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    if not all(getattr(leaf, "shape", ()) for leaf in leaves):
        return  # Keras reports that they cannot be split
    place = int(leaves[0].shape[0] * (1.0 - share))
    rest = [_piece(part, slice(place, None)) for part in data.values() if part is not None]
    for name, part in data.items():
        if part is not None:
            arguments[name] = _piece(part, slice(place))
    arguments.update(validation_data=tuple(rest), validation_split=0.0)


def _piece(data: Any, rows: slice) -> Any:
    return tf.nest.map_structure(
        lambda leaf: leaf.iloc[rows] if hasattr(leaf, "iloc") else leaf[rows], data
    )


def _build(model: Any, source: Source) -> None:
    """Build a model that has no weights yet, by a call on a batch."""
    if not model.built:
        batch = source.sample()
        model(batch[0] if isinstance(batch, tuple) else batch)
