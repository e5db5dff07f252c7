"""Horovod's callbacks.

``model.fit`` keeps ranks in step without them (see ``fit``). They do more than that, and also work
in custom training loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from farandole.core.api.objects import allgather_object
from farandole.core.api.ops import WORLD
from farandole.errors import NotInitializedError
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.keras import metrics
from farandole.keras.common_callbacks import Best, LearningRates, Tracking, WarmUp
from farandole.keras.elastic import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from farandole.keras.optimizer import reducers_of
from farandole.keras.weights import broadcast_built, has_weights, numpy_of

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CommitStateCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "TrackingCallback",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Broadcast ``root_rank``'s weights and optimizer state to all ranks before the first step,
    once.

    ``local_variables``: variables that stay local to each rank. ``device``: accepted for
    compatibility with Horovod. Raises ValueError on all ranks when their models differ.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Sequence[Any] | None = None
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.local_variables = list(local_variables or ())
        self.broadcast_done = False

    def register_local_var(self, var: Any) -> None:
        """Keep ``var`` local to each rank."""
        self.local_variables.append(var)

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.broadcast_done:
            return
        model = self.model
        if model.built:
            self._broadcast(model)
        elif (
            model.train_function is not None
        ):  # only TensorFlow delays the broadcast to the first step
            _around_first_step(model, self._broadcast)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        # in a custom training loop
        if not self.broadcast_done and (self.model.built or has_weights(self.model)):
            _broadcast_late(self.model, self._broadcast)

    def _broadcast(self, model: Any) -> None:
        self.broadcast_done = True
        for _, reducer in reducers_of(model):
            reducer.not_broadcast += self.local_variables
        broadcast_built(model, self.root_rank, process_set_of(model), self.local_variables)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Average metrics over the samples of all ranks, for the callbacks after this one.

    ``model.fit`` does this without the callback.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.watch = metrics.Watch()

    def on_test_begin(self, logs: Any = None) -> None:
        self.watch.test_begins(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not logs or id(self._model) in metrics.pooled_by_fit or not together(self._model):
            self.watch.forget()
            return
        process_set = process_set_of(self._model)
        tallies = self.watch.tallies(self.model, logs)
        everybody = allgather_object(tallies, process_set=process_set)
        self.watch.pool(self.model, everybody, logs, process_set)


class LearningRateScheduleCallback(LearningRates, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = LearningRates.__doc__

    def rate_of(self, optimizer: Any) -> float:
        return _rate(optimizer)

    def scale_momentum(self, optimizer: Any, factor: float) -> None:
        _scale_momentum(optimizer, factor)


class LearningRateWarmupCallback(WarmUp, LearningRateScheduleCallback):
    __doc__ = WarmUp.__doc__


class BestModelCheckpoint(Best, keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    __doc__ = Best.__doc__


class TrackingCallback(Tracking, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = Tracking.__doc__


def process_set_of(model: Any) -> ProcessSet:
    """Return the ranks that train ``model`` together."""
    return next((reducer.process_set for _, reducer in reducers_of(model)), WORLD)


def _around_first_step(model: Any, then: Callable[[Any], None]) -> None:
    """Build ``model`` from the shapes of the first batch and call ``then(model)`` before the first
    step, or after that step if only running it creates the weights.
    """
    step = model.train_function

    def first(iterator: Any) -> Any:
        model.train_function = step
        if _builds(model, iterator):
            then(model)
            return step(iterator)
        logs = step(iterator)
        _broadcast_late(model, then)
        return logs

    model.train_function = first


def _broadcast_late(model: Any, broadcast: Callable[[Any], None]) -> None:
    """Call ``broadcast(model)`` after a step."""
    broadcast(model)
    for _, reducer in reducers_of(model):
        if reducer.exchange is not None:  # training has begun with each rank's own weights
            reducer.exchange.restart()


def _builds(model: Any, iterator: Any) -> bool:
    """Return whether the model has all of its weights, or creates them when called with the shapes
    of a batch.
    """
    try:
        model._symbolic_build(data_batch=iterator.element_spec)
    # a custom train_step may not call the model, but all of its layers may be built
    except Exception:
        return has_weights(model)
    return True


def _rate(optimizer: Any) -> float:
    return float(numpy_of(optimizer.learning_rate))


def _scale_momentum(optimizer: Any, factor: float) -> None:
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if getattr(optimizer, "momentum", None) and optimizer.built:
        for velocity in getattr(optimizer, "momentums", ()):
            if velocity is not None:
                velocity.assign(keras.ops.multiply(velocity, factor))


def together(model: Any) -> bool:
    """Return whether several ranks, including this one, train ``model``."""
    try:
        process_set = process_set_of(model)
        return context.size() > 1 and process_set.included() and process_set.size() > 1
    except NotInitializedError:
        return False
