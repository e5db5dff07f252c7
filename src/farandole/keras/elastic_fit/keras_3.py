"""``model.fit`` of Keras 3 in an elastic job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from farandole.job import context
from farandole.job.config import Connection
from farandole.keras.data import remaining_of_loader, shard_dataset, split_validation
from farandole.keras.elastic import KerasState
from farandole.keras.elastic_fit.data import ChosenBatches, Source, Tools, source_of
from farandole.keras.elastic_fit.joining import joined
from farandole.keras.elastic_fit.loop import ElasticFit, Kit
from farandole.keras.elastic_fit.progress import FitProgress
from farandole.keras.global_batch import check_fit
from farandole.keras.optimizer import innermost, reducers_of
from farandole.keras.reducer import counter
from farandole.keras.weights import has_weights, numpy_of


class FitState(FitProgress, KerasState):
    """The state of one ``fit`` of Keras 3."""


class _Chosen(ChosenBatches, keras.utils.PyDataset):  # type: ignore[misc]
    """The chosen batches of a PyDataset."""

    def __init__(self, whole: Any, numbers: Sequence[int]) -> None:
        super().__init__(
            workers=whole.workers,
            use_multiprocessing=whole.use_multiprocessing,
            max_queue_size=whole.max_queue_size,
        )
        self._whole, self._numbers = whole, numbers


def _take(data: Any, rows: Any) -> Any:
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    return data[rows] if isinstance(data, np.ndarray) else keras.ops.take(data, rows, axis=0)


def _join(batches: Sequence[Any], rows: int) -> Any:
    return joined(batches, rows, keras.tree.map_structure, _concatenate, _take)


def _concatenate(leaves: Sequence[Any]) -> Any:
    if any(keras.ops.is_tensor(leaf) for leaf in leaves):
        return keras.ops.concatenate(leaves, axis=0)
    return np.concatenate([np.asarray(leaf) for leaf in leaves])


_TOOLS = Tools(
    keras.tree.flatten,
    keras.tree.map_structure,
    _take,
    keras.utils.PyDataset,
    lambda data: data.num_batches,
    _Chosen,
    shard_dataset,
    remaining_of_loader,
    _join,
)


def _wait(callback: Any) -> None:
    numpy_of(counter(innermost(callback.model.optimizer)))


def _ignore_backup(model: Any) -> None:
    model._initial_epoch = None


_KIT = Kit(
    keras.callbacks.Callback,
    keras.callbacks.CallbackList,
    keras.callbacks.History,
    keras.callbacks.ProgbarLogger,
    _wait,
    _ignore_backup,
)


def continues(model: Any) -> bool:
    """Return whether ``fit`` of this model continues automatically when ranks are lost or added, or
    the job is started again: in an elastic job, with ``commit_dir`` or a fixed global batch, with a
    distributed optimizer over all ranks, outside of ``elastic.run``.
    """
    if not context.is_initialized() or not (context.keeps_commits() or context.shares()):
        return False
    reducers = [reducer for _, reducer in reducers_of(model)]
    return (
        bool(reducers)
        and all(each.process_set is context.global_process_set for each in reducers)
        and not context.object_names().is_within
    )


def elastic_fit(
    original: Any, arguments: dict[str, Any], users: Sequence[Any], divided: bool
) -> ElasticFit:
    """Return one call of ``fit``, ready to run.

    ``original``: Keras's ``fit``; ``arguments``: the program's, by name, with ``self``.
    ``users``: the program's callbacks. ``divided``: whether ``fit`` divides the data among ranks.
    """
    model = arguments["self"]
    split_validation(arguments)
    seed = 0 if divided else 1 + Connection.from_env().number(context.rank())
    source = source_of(arguments, divided, seed, _TOOLS, full=bool(context.shares()))
    _build(model, source)
    if context.shares():
        check_fit(model, arguments, divided)
    epoch = int(arguments.get("initial_epoch", 0))
    state = FitState(model, epoch=epoch, batch=0, done=0, started=False, finished=False)
    fit = ElasticFit(_KIT, state, original, arguments, users, source)
    followed = [*fit.users, fit.history]
    state.follow(followed, lambda: model.metrics_variables, numpy_of)
    return fit


def _build(model: Any, source: Source) -> None:
    """Build a model that has no weights yet, from the shapes of a batch."""
    if model.built:
        return
    batch = source.sample()
    batch = batch if isinstance(batch, (tuple, list)) else (batch,)
    whole = (*batch, *(None for _ in range(3 - len(batch))))
    try:
        model._symbolic_build(data_batch=whole)
    except Exception:  # a custom train_step may not call the model
        model(batch[0])
    if not model.built and has_weights(model):
        model.built = True
