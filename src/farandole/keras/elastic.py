"""The state of a Keras training that an elastic job goes on from, and the callbacks that keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from farandole.frontend.elastic import run
from farandole.frontend.state import ObjectState
from farandole.keras.common_callbacks import CommitState, UpdateBatchState, UpdateEpochState
from farandole.keras.weights import broadcast_model, broadcast_variables, numpy_of

if TYPE_CHECKING:
    from farandole.types import Array

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class KerasState(ObjectState):
    """A model, its optimizer and plain values (``epoch=0, batch=0``).

    ``optimizer``: by default the one that the model is compiled with. Nothing is sent before ``sync()``.
    Raises ValueError if the model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        self._copies: list[Array] = []
        super().__init__(**kwargs)
        self._save_model()

    def save(self) -> None:
        self._save_model()
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self._variables(), self._copies, strict=False):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        broadcast_model(self.model, 0)
        if self.optimizer is not None and self.optimizer is not getattr(self.model, "optimizer", None):
            broadcast_variables(self.optimizer.variables, 0)
        self._save_model()
        super().sync()

    def _variables(self) -> list[Any]:
        return [*self.model.weights, *([] if self.optimizer is None else self.optimizer.variables)]

    def _save_model(self) -> None:
        self._copies = [np.array(numpy_of(variable)) for variable in self._variables()]


class CommitStateCallback(CommitState, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = CommitState.__doc__


class UpdateBatchStateCallback(UpdateBatchState, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = UpdateBatchState.__doc__


class UpdateEpochStateCallback(UpdateEpochState, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = UpdateEpochState.__doc__
