"""Horovod's callbacks. ``model.fit`` needs none of them to keep ranks together (see ``fit``): they say what is wanted
beyond that, and work in loops of one's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras

from farandole import context
from farandole.context import ProcessSet
from farandole.errors import NotInitializedError
from farandole.frontend.callbacks import Schedule, multiplier_of, warmup_factor
from farandole.frontend.objects import allgather_object
from farandole.frontend.ops import WORLD
from farandole.keras import metrics
from farandole.keras.elastic import CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback
from farandole.keras.optimizer import gradients_of
from farandole.keras.weights import broadcast_model, numpy_of

__all__ = [
    "BestModelCheckpoint", "BroadcastGlobalVariablesCallback", "CommitStateCallback", "LearningRateScheduleCallback",
    "LearningRateWarmupCallback", "MetricAverageCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback",
]  # fmt: skip


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Gives every rank ``root_rank``'s weights and optimizer state before the first step, once.

    ``local_variables``: variables that are left to each rank. ``device`` is there for programs written for Horovod.
    Raises ValueError on all ranks when their models differ.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Sequence[Any] | None = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.local_variables = list(local_variables or ())
        self.broadcast_done = False

    def register_local_var(self, var: Any) -> None:
        """Leave ``var`` to each rank."""
        self.local_variables.append(var)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.broadcast_done:
            return
        model = self.model
        if model.built:
            self._broadcast(model)
        else:  # TensorFlow alone leaves that to the first step
            _build_before_first_step(model, self._broadcast)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self.broadcast_done:  # the model could not be built without running it
            self._broadcast(self.model)

    def _broadcast(self, model: Any) -> None:
        self.broadcast_done = True
        broadcast_model(model, self.root_rank, process_set_of(model), self.local_variables)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Metrics over the samples of all ranks, for the callbacks after it. ``model.fit`` has them without it, too."""

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.watch = metrics.Watch()

    def on_test_begin(self, logs: Any = None) -> None:
        self.watch.test_begins(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not logs or id(self._model) in metrics.conducted or not together(self._model):
            self.watch.forget()
            return
        process_set = process_set_of(self._model)
        tallies = self.watch.tallies(self.model, logs)
        self.watch.pool(self.model, allgather_object(tallies, process_set=process_set), logs)


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Learning rate ``initial_lr * multiplier(epoch)`` from ``start_epoch`` to ``end_epoch``.

    ``multiplier``: a function of the epoch, or a number m for m ** (epoch - start_epoch). ``staircase``: change it at
    the first batch of an epoch only, else at every batch, with a fractional epoch. ``momentum_correction``: scale the
    momentum by new / old rate for the batch at which it changes (Goyal et al. 2017).
    """

    def __init__(
        self, initial_lr: float, multiplier: float | Callable[[float], float], start_epoch: int = 0,
        end_epoch: int | None = None, staircase: bool = True, momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        staircase = staircase or not callable(multiplier)
        self.schedule = Schedule(initial_lr, multiplier_of(multiplier, start_epoch), start_epoch, end_epoch, staircase)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = start_epoch

    def on_train_begin(self, logs: Any = None) -> None:
        if self.schedule.initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        if not self.schedule.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter "
                    f"to the {type(self).__name__}() or upgrade to the latest version of Keras."
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        rate = self.schedule.rate(self.current_epoch, batch, self.steps_per_epoch or 1)
        if rate is None:
            return
        optimizer = self.model.optimizer
        old = _rate(optimizer)
        optimizer.learning_rate = rate
        if self.momentum_correction and old > 0 and rate != old:
            _scale_momentum(optimizer, rate / old)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = _rate(self.model.optimizer)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr`` / size to ``initial_lr`` over ``warmup_epochs``, batch by batch.

    ``initial_lr``: the rate for all ranks together: that of one, times ``size()``.
    """

    def __init__(
        self, initial_lr: float, warmup_epochs: float = 5, momentum_correction: bool = True,
        steps_per_epoch: int | None = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        size = context.size()

        def multiplier(epoch: float) -> float:
            # the last batch of an epoch has the round number
            return warmup_factor(epoch + 1 / (self.steps_per_epoch or 1), size, warmup_epochs)

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch  # type: ignore[arg-type]
        )  # fmt: skip
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        end = self.schedule.end_epoch
        if end is not None and epoch == end - 1 and self.verbose > 0 and context.rank() == 0:
            rate = _rate(self.model.optimizer)
            sys.stdout.write(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.\n")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """A ModelCheckpoint that keeps the best model. Set its ``filepath`` before training."""

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, save_weights_only: bool = False, mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:  # fmt: skip
        ending = "best.weights.h5" if save_weights_only else "best.keras"
        super().__init__(
            ending, monitor=monitor, verbose=verbose, save_best_only=True, save_weights_only=save_weights_only,
            mode=mode, save_freq=save_freq,
        )  # fmt: skip
        self.filepath: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint has no filepath: set it, callback.filepath = 'best.keras'")
        super().on_train_begin(logs)


def process_set_of(model: Any) -> ProcessSet:
    """The ranks that train ``model`` together."""
    gradients = gradients_of(getattr(model, "optimizer", None))
    return WORLD if gradients is None else gradients.process_set


def _build_before_first_step(model: Any, then: Callable[[Any], None]) -> None:
    """Build ``model`` from what the first step's data look like, and call ``then(model)`` before that step."""
    step = model.train_function

    def first(iterator: Any) -> Any:
        model.train_function = step
        try:
            model._symbolic_build(data_batch=iterator.element_spec)
        except Exception:  # it cannot be built without data: it starts from rank 0's weights one step later
            return step(iterator)
        then(model)
        return step(iterator)

    model.train_function = first


def _rate(optimizer: Any) -> float:
    return float(numpy_of(optimizer.learning_rate))


def _scale_momentum(optimizer: Any, factor: float) -> None:
    """What was gathered with the old learning rate counts ``factor`` times: for one step, that is the same as a
    momentum of ``factor`` times itself, which Keras has compiled into the step."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if getattr(optimizer, "momentum", None) and optimizer.built:
        for velocity in getattr(optimizer, "momentums", ()):
            if velocity is not None:
                velocity.assign(keras.ops.multiply(velocity, factor))


def together(model: Any) -> bool:
    """Is this rank one of several that train ``model``?"""
    try:
        process_set = process_set_of(model)
        return context.size() > 1 and process_set.included() and process_set.size() > 1
    except NotInitializedError:
        return False
