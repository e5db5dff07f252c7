"""The state of a Keras training that an elastic job goes on from, and the callbacks that keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from farandole.frontend.state import ObjectState
from farandole.keras.weights import broadcast_model, numpy_of

if TYPE_CHECKING:
    from farandole.types import Array

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback"]


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
        self._save_model()
        super().sync()

    def _variables(self) -> list[Any]:
        return [*self.model.weights, *([] if self.optimizer is None else self.optimizer.variables)]

    def _save_model(self) -> None:
        self._copies = [np.array(numpy_of(variable)) for variable in self._variables()]


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """``state.commit()`` every ``batches_per_commit`` batches, and when an epoch ends."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            _commit(self)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        _commit(self)


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps ``state.batch`` at the number of batches of this epoch that are done, so that none is repeated.

    A resumed epoch is as much shorter; ``state.batch`` is 0 when it ends. Put it before ``CommitStateCallback``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._done = 0
        self._steps: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._steps = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._done = self.state.batch
        if (self.params or {}).get("steps"):
            self._steps = self._steps or self.params["steps"]
            self.params["steps"] = self._steps - self._done

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = self._done + batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps ``state.epoch`` at the number of epochs that are done, those before a reset included. Put it before
    ``CommitStateCallback``."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = self.initial_epoch + epoch + 1


def _commit(callback: Any) -> None:
    model = callback.model  # on JAX, this brings the weights home
    assert model is not None
    callback.state.commit()
