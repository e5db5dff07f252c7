"""The state of a Keras 2 training that an elastic job goes on from, and the callbacks that keep it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from farandole import context
from farandole.frontend.elastic import run
from farandole.frontend.objects import broadcast_object
from farandole.frontend.state import ObjectState
from farandole.keras.common_callbacks import CommitState, UpdateBatchState, UpdateEpochState
from farandole.keras.tf_keras.optimizer import make_slots, state_of
from farandole.tensorflow.broadcasting import broadcast_variables

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class KerasState(ObjectState):
    """A model of Keras 2, its optimizer and plain values: see ``farandole.keras.elastic.KerasState``."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model, self.optimizer = model, optimizer or model.optimizer
        if self.optimizer is not None:  # what it makes in its first step would not go back
            make_slots(self.optimizer, model.trainable_variables)
        super().__init__(broadcast_object, context.rank, **kwargs)
        self._save_variables()

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        for variable in self._accumulated():  # some may have been made since
            variable.assign(tf.zeros_like(variable))
        for variable, value in getattr(self, "_copies", ()):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        broadcast_variables(self._variables(), 0)
        self._save_variables()
        super().sync()

    def _save_variables(self) -> None:
        self._copies = [(variable, variable.numpy()) for variable in [*self._variables(), *self._accumulated()]]

    def _variables(self) -> list[Any]:
        of_optimizer = getattr(self.optimizer, "variables", [])
        return [*self.model.variables, *(of_optimizer() if callable(of_optimizer) else of_optimizer)]

    def _accumulated(self) -> list[Any]:
        """What waits on this rank for the last of ``backward_passes_per_step`` passes. It is no other rank's."""
        state = None if self.optimizer is None else state_of(self.optimizer)
        return [] if state is None else state.helper.variables


class CommitStateCallback(CommitState, tf_keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = CommitState.__doc__


class UpdateBatchStateCallback(UpdateBatchState, tf_keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = UpdateBatchState.__doc__


class UpdateEpochStateCallback(UpdateEpochState, tf_keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = UpdateEpochState.__doc__
