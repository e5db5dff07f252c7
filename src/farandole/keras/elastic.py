"""The state of Keras training in an elastic job, and the callbacks that keep it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from farandole.base.digests import whole_digest
from farandole.core.api.elastic import run
from farandole.core.api.ops import WORLD
from farandole.job import context
from farandole.keras.common_callbacks import CommitState, UpdateBatchState, UpdateEpochState
from farandole.keras.exchange import KerasExchange
from farandole.keras.layer_state import states_of
from farandole.keras.optimizer import all_optimizers_of, gradients_of, innermost, optimizers_of
from farandole.keras.saved_variables import SavedVariables
from farandole.keras.strategy_states import StrategyStates
from farandole.keras.weights import (
    broadcast_model,
    broadcast_variables,
    build_on_all_ranks,
    local_of,
    numpy_of,
)

if TYPE_CHECKING:
    from farandole.base.types import Array

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(SavedVariables):
    """The state of a model, its optimizers and plain values (``epoch=0, batch=0``).

    ``model``: a built model, with its compiled optimizer and any optimizer that it holds for a
    custom ``train_step``. ``optimizer``: a further optimizer, which the model does not hold.
    ``backend``: ignored; Horovod's argument. ``kwargs``: the plain values, as attributes. Nothing
    is sent before ``sync()``. Raises ValueError if the model is not built.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        if context.is_elastic():
            # Keras imports all installed backends when it reads the first configuration of a layer:
            # seconds for which the other ranks would wait in sync().
            states_of(model._flatten_layers(include_self=False))
        self._copies: list[tuple[Any, Array]] = []
        self._strategies = StrategyStates(self._exchanges, self._reals)
        super().__init__(**kwargs)
        self._save_model()

    def save(self) -> None:
        self._save_model()
        super().save()

    def restore(self) -> None:
        saved = {id(variable) for variable, _ in self._copies}
        for optimizer in self._optimizers():
            for variable, value in _made_since(optimizer, saved):
                variable.assign(value)
        for variable, value in self._copies:
            variable.assign(value)
        self._strategies.restore()
        super().restore()

    def sync(self) -> None:
        self._strategies.merge()
        broadcast_model(self.model, 0)
        sent = {id(each) for each in optimizers_of(self.model)}
        others = [each for each in self._optimizers() if id(each) not in sent]
        build_on_all_ranks(self.model, others, WORLD)
        broadcast_variables([variable for each in others for variable in each.variables], 0)
        self._strategies.share()
        received = self._receive()
        self._save_model()
        self._adopt(received)

    def replicas(self) -> Mapping[str, Any]:
        """Return the trained weights, and the variables of the optimizers; none if ranks exchange
        weights periodically.

        Left out are values that differ between ranks: statistics (BatchNormalization), variables
        that stay local to each rank, and then also the optimizers' variables.
        """
        optimizers = self._optimizers()
        if any(_exchanges_weights(each) for each in optimizers):
            return {}
        own = {id(variable) for variable in local_of(self.model)}
        found = [each for each in self.model.trainable_weights if id(each) not in own]
        for optimizer in () if own else optimizers:
            found += optimizer.variables
        return {f"{number}.{each.path}": each for number, each in enumerate(found)}

    def digest_of_replica(self, value: Any) -> int:
        return whole_digest(numpy_of(value))

    def bytes_of_replica(self, value: Any) -> Any:
        return super().bytes_of_replica(numpy_of(value))

    def overwrite_replicas(self, values: Mapping[str, Any]) -> None:
        here = self.replicas()
        for name, value in values.items():
            array = numpy_of(here[name])
            here[name].assign(value.view(array.dtype).reshape(array.shape))

    def _optimizers(self) -> list[Any]:
        found = all_optimizers_of(self.model)
        known = self.optimizer is None or any(
            innermost(each) is innermost(self.optimizer) for each in found
        )
        return found if known else [*found, self.optimizer]

    def _exchanges(self) -> list[tuple[KerasExchange, int]]:
        pairs = [(each, gradients_of(innermost(each))) for each in self._optimizers()]
        return [
            (reducer.exchange, reducer.last_step(innermost(each)))
            for each, reducer in pairs
            if reducer is not None and reducer.exchange is not None
        ]

    def _reals(self) -> list[Any]:
        found = [*self.model.trainable_weights, *self.model.non_trainable_weights]
        return [each for each in found if keras.backend.is_float_dtype(each.dtype)]

    def _save_model(self) -> None:
        self._strategies.save()
        states = [variable for optimizer in self._optimizers() for variable in optimizer.variables]
        self._copies = [
            (variable, np.array(numpy_of(variable))) for variable in [*self.model.weights, *states]
        ]


def _exchanges_weights(optimizer: Any) -> bool:
    return getattr(getattr(optimizer, "_farandole", None), "exchange", None) is not None


def _made_since(optimizer: Any, saved: Collection[int]) -> list[tuple[Any, Array]]:
    """Return the variables that ``optimizer`` has created since the last save, with their initial
    values.

    ``saved``: the ids of the saved variables.
    """
    if all(id(variable) in saved for variable in optimizer.variables):
        return []
    kind = innermost(optimizer).__class__
    with keras.saving.custom_object_scope({kind.__name__: kind}):
        fresh = optimizer.__class__.from_config(optimizer.get_config())
    fresh.build(innermost(optimizer)._trainable_variables)
    pairs = zip(optimizer.variables, fresh.variables, strict=True)
    return [(variable, numpy_of(new)) for variable, new in pairs if id(variable) not in saved]


class CommitStateCallback(CommitState, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = CommitState.__doc__


class UpdateBatchStateCallback(UpdateBatchState, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = UpdateBatchState.__doc__


class UpdateEpochStateCallback(UpdateEpochState, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = UpdateEpochState.__doc__
