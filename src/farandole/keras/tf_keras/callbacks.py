"""Horovod's callbacks for ``fit`` of Keras 2."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from farandole.base.digests import combined
from farandole.checks.no_exchange import NoExchange
from farandole.core.api.ops import WORLD
from farandole.job import context
from farandole.keras.adapted import watch
from farandole.keras.common_callbacks import Best, LearningRates, Tracking, WarmUp
from farandole.keras.constants import make_functions, renew_in
from farandole.keras.exchange import KerasExchange
from farandole.keras.layer_state import share
from farandole.keras.tf_keras import backup
from farandole.keras.tf_keras.elastic import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from farandole.keras.tf_keras.optimizer import (
    average_weights,
    exchange_of,
    local_layers_of,
    local_of,
    optimizers_of,
    state_of,
)
from farandole.keras.tf_keras.slots import (
    align_slots,
    make_slots,
    slots_of,
    state_variables,
    variables_of,
)
from farandole.keras.tf_keras.values import allreduce, evaluated
from farandole.tensorflow.broadcasting import broadcast_variables
from farandole.tensorflow.checks import digests_of, readable

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


class BroadcastGlobalVariablesCallback(tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Broadcast ``root_rank``'s weights and optimizer state before the first step, if the model is
    built by then, and after the first step.

    A checkpoint therefore needs to be loaded on one rank only. If several ranks share a folder of
    ``BackupAndRestore``, the first of them writes it, and all begin at ``root_rank``'s epoch.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Sequence[Any] | None = None
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local = {variable.ref() for variable in local_variables or ()}

    def register_local_var(self, var: Any) -> None:
        """Keep ``var`` local to each rank."""
        self._local.add(var.ref())

    def on_train_begin(self, logs: Any = None) -> None:
        backup.share(self.model, self.root_rank)

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self.broadcast_done and self.model.built:
            self._make_slots()
            self._broadcast()
            self.broadcast_done = bool(self._exchanges())  # each rank steps locally

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self.broadcast_done:
            self._broadcast()
            self.broadcast_done = True
            for exchange in self._exchanges():
                exchange.restart()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for optimizer in optimizers_of(self.model):
            if hasattr(optimizer, "end_of_epoch"):
                optimizer.end_of_epoch()

    def on_train_end(self, logs: Any = None) -> None:
        average_weights(self.model, self._local)

    def _exchanges(self) -> list[KerasExchange]:
        found = [exchange_of(optimizer) for optimizer in optimizers_of(self.model)]
        return [exchange for exchange in found if exchange is not None]

    def _make_slots(self) -> None:
        """Create the optimizer's slots on all ranks. A rank that loaded the model already has them;
        the others would create theirs only in the first step.
        """
        if readable():
            with self.model.distribute_strategy.scope():
                make_slots(self.model.optimizer, self.model.trainable_variables)

    def _broadcast(self) -> None:
        optimizers = optimizers_of(self.model)
        if readable() and context.size() > 1:
            layers = [layer for each in optimizers for layer in local_layers_of(each)]
            if share(self.model._flatten_layers(include_self=False), self.root_rank, WORLD, layers):
                make_functions(self.model)
        align_slots(self.model, [each for each in optimizers if each is not self.model.optimizer])
        states = [state_variables(each) for each in optimizers]
        local = [
            *(ref.deref() for ref in self._local),
            *(one for each in optimizers for one in local_of(each)),
        ]
        slots = [slot for each in optimizers for slot in slots_of(each, local)]
        metrics = [
            each for each in self.model.submodules if isinstance(each, tf_keras.metrics.Metric)
        ]
        # metrics count this rank's samples
        counted = [variable for metric in metrics for variable in metric.variables]
        kept = {variable.ref() for variable in [*local, *slots, *counted]}
        variables = [*variables_of(self.model), *itertools.chain(*states)]
        variables = [variable for variable in variables if variable.ref() not in kept]
        known = context.parameters_broadcast()
        evaluated(broadcast_variables(variables, self.root_rank))
        if readable():
            renew_in(self.model, tf_keras.layers.Normalization, np.asarray)
        if context.size() > 1:  # count the weights once, without the optimizer's variables
            weights = sum(
                variable.shape.num_elements() or 0 for variable in self.model.trainable_variables
            )
            context.add_parameters_broadcast(max(known, weights) - context.parameters_broadcast())


class MetricAverageCallback(tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Average the epoch's logs over all ranks. Put it before callbacks that read them."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        values = {
            name: np.asarray(value) for name, value in sorted((logs or {}).items()) if name != "lr"
        }
        values = {name: value for name, value in values.items() if value.dtype.kind in "biuf"}
        if not values or context.size() == 1:
            return
        flat = np.concatenate([value.ravel() for value in values.values()], dtype=np.float64)
        means = np.asarray(allreduce(flat))
        for name, value in values.items():
            mean, means = means[: value.size].reshape(value.shape), means[value.size :]
            logs[name] = mean.astype(value.dtype) if value.ndim else float(mean)


class LearningRateScheduleCallback(
    LearningRates,
    tf_keras.callbacks.Callback,  # type: ignore[misc]
):
    __doc__ = LearningRates.__doc__

    def rate_of(self, optimizer: Any) -> float:
        return float(tf_keras.backend.get_value(optimizer.learning_rate))

    def scale_momentum(self, optimizer: Any, factor: float) -> None:
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer):
            names = "momentum" in optimizer.get_slot_names()
            variables = self.model.trainable_variables if names else []
            slots = [optimizer.get_slot(variable, "momentum") for variable in variables]
        else:
            slots = (
                getattr(optimizer, "momentums", []) if getattr(optimizer, "momentum", None) else []
            )
        for slot in slots:
            tf_keras.backend.set_value(slot, tf_keras.backend.get_value(slot) * factor)


class LearningRateWarmupCallback(WarmUp, LearningRateScheduleCallback):
    __doc__ = WarmUp.__doc__


class BestModelCheckpoint(Best, tf_keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    __doc__ = Best.__doc__


class TrackingCallback(Tracking, tf_keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = Tracking.__doc__


class NoExchangeWarning(tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Warn when ranks train with a plain optimizer and exchange no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self._watch = NoExchange(
            lambda model: combined(digests_of(model.trainable_variables)),
            lambda model: model.count_params() if model.built else 0,
        )

    def on_train_begin(self, logs: Any = None) -> None:
        self._watch.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._watch.step_ended(lambda: self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._watch.epoch_ended(lambda: self.model)

    def on_train_end(self, logs: Any = None) -> None:
        self._watch.end()


def _install() -> None:
    """Wrap ``fit``, to watch training with a plain optimizer, and the methods that adapt layers."""
    original = tf_keras.Model.fit

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (context.takes_part() and context.size() > 1 and readable()):
            return original(self, *args, **kwargs)
        if any(state_of(optimizer) is not None for optimizer in optimizers_of(self)):
            return original(self, *args, **kwargs)
        bound = inspect.signature(original).bind(self, *args, **kwargs)
        callbacks = bound.arguments.get("callbacks")
        if isinstance(callbacks, tf_keras.callbacks.CallbackList):
            return original(self, *args, **kwargs)
        given = tf.nest.flatten(callbacks) if callbacks else []
        bound.arguments["callbacks"] = [*given, NoExchangeWarning()]
        return original(*bound.args, **bound.kwargs)

    tf_keras.Model.fit = fit
    watch(tf_keras.layers)


_install()
