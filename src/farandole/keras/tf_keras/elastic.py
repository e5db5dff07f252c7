"""The state of Keras 2 training in an elastic job, and the callbacks that keep it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from farandole.base.digests import whole_digest
from farandole.core.api.elastic import run
from farandole.core.api.objects import broadcast_object
from farandole.core.api.ops import WORLD
from farandole.job import context
from farandole.keras.common_callbacks import CommitState, UpdateBatchState, UpdateEpochState
from farandole.keras.constants import make_functions
from farandole.keras.exchange import KerasExchange
from farandole.keras.layer_state import share
from farandole.keras.saved_variables import SavedVariables
from farandole.keras.strategy_states import StrategyStates
from farandole.keras.tf_keras.optimizer import all_optimizers_of, local_of, plain_class, state_of
from farandole.keras.tf_keras.slots import (
    align_slots,
    innermost,
    keys_of,
    make_slots,
    numbered_state,
    state_variables,
    variables_of,
)
from farandole.tensorflow.broadcasting import broadcast_variables

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(SavedVariables):
    """The state of a Keras 2 model, its optimizers and plain values. Arguments and errors are the
    same as in ``farandole.keras.elastic.KerasState``.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model, self.optimizer = model, optimizer or model.optimizer
        if self.optimizer is not None:  # variables created in its first step would not be restored
            make_slots(self.optimizer, model.trainable_variables)
        self._strategies = StrategyStates(self._exchanges, self._reals)
        super().__init__(broadcast_object, context.rank, **kwargs)
        self._save_variables()

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        for variable in self._accumulated():  # some may have been created since
            variable.assign(tf.zeros_like(variable))
        copies = getattr(self, "_copies", ())
        saved = {variable.ref() for variable, _ in copies}
        for optimizer in self._optimizers():
            for variable, value in _made_since(optimizer, variables_of(self.model), saved):
                variable.assign(value)
        for variable, value in copies:
            variable.assign(value)
        self._strategies.restore()
        super().restore()

    def sync(self) -> None:
        align_slots(self.model, [each for each in self._optimizers() if each is not self.optimizer])
        if context.size() > 1 and share(self.model._flatten_layers(include_self=False), 0, WORLD):
            make_functions(self.model)
        self._strategies.merge()
        broadcast_variables(self._variables(), 0)
        self._strategies.share()
        received = self._receive()
        self._save_variables()
        self._adopt(received)

    def replicas(self) -> Mapping[str, Any]:
        """See ``farandole.keras.elastic.KerasState``."""
        optimizers = self._optimizers()
        states = [state_of(each) for each in optimizers]
        if any(each is not None and each.reducer.options.strategy for each in states):
            return {}
        own = {id(variable) for optimizer in optimizers for variable in local_of(optimizer)}
        found = [each for each in self.model.trainable_weights if id(each) not in own]
        for optimizer in () if own else optimizers:
            found += state_variables(optimizer)
        return {f"{number}.{each.name}": each for number, each in enumerate(found)}

    def overwrite_replicas(self, values: Mapping[str, Any]) -> None:
        here = self.replicas()
        for name, value in values.items():
            array = here[name].numpy()
            here[name].assign(value.view(array.dtype).reshape(array.shape))

    def digest_of_replica(self, value: Any) -> int:
        return whole_digest(value.numpy())

    def bytes_of_replica(self, value: Any) -> Any:
        return super().bytes_of_replica(value.numpy())

    def _save_variables(self) -> None:
        self._strategies.save()
        self._copies = [
            (variable, variable.numpy()) for variable in [*self._variables(), *self._accumulated()]
        ]

    def _optimizers(self) -> list[Any]:
        found = all_optimizers_of(self.model)
        known = self.optimizer is None or any(
            innermost(each) is innermost(self.optimizer) for each in found
        )
        return found if known else [*found, self.optimizer]

    def _exchanges(self) -> list[tuple[KerasExchange, int]]:
        states = [(each, state_of(each)) for each in self._optimizers()]
        return [
            (state.exchange, state.last_step(each))
            for each, state in states
            if state is not None and state.exchange is not None
        ]

    def _reals(self) -> list[Any]:
        trained = {each.ref() for each in self.model.trainable_weights}
        found = variables_of(self.model)
        found.sort(key=lambda each: each.ref() not in trained)  # stable
        return [each for each in found if each.dtype.is_floating]

    def _variables(self) -> list[Any]:
        states = [
            variable for optimizer in self._optimizers() for variable in state_variables(optimizer)
        ]
        return [*variables_of(self.model), *states]

    def _accumulated(self) -> list[Any]:
        """Return the gradients that this rank has accumulated within ``backward_passes_per_step``
        passes. Other ranks have their own.
        """
        states = [state_of(optimizer) for optimizer in self._optimizers()]
        return [
            variable for state in states if state is not None for variable in state.helper.variables
        ]


def _made_since(
    optimizer: Any, variables: Sequence[Any], saved: Collection[Any]
) -> list[tuple[Any, Any]]:
    """Return the slots that ``optimizer`` has created for ``variables`` since the last save, with
    their initial values.

    ``saved``: the ``ref()`` of the saved variables.
    """
    if all(variable.ref() in saved for variable in state_variables(optimizer)):
        return []
    inner, known = innermost(optimizer), {variable._unique_id: variable for variable in variables}
    fresh = plain_class(inner).from_config(inner.get_config())
    make_slots(fresh, [known[key] for key in keys_of(inner) if key in known])
    made, new = numbered_state(inner), numbered_state(fresh)
    return [(made[key], new[key]) for key in made if key in new and made[key].ref() not in saved]


class CommitStateCallback(CommitState, tf_keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = CommitState.__doc__


class UpdateBatchStateCallback(UpdateBatchState, tf_keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = UpdateBatchState.__doc__


class UpdateEpochStateCallback(UpdateEpochState, tf_keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = UpdateEpochState.__doc__
