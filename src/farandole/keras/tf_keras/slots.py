"""The state of a Keras 2 optimizer, old (``optimizers.legacy``) or new: its variables and slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from farandole.core.api.objects import allgather_object
from farandole.tensorflow.checks import readable


def variables_of(model: Any) -> list[Any]:
    """Return the variables of a model or layer, without the lookup tables that Keras lists among
    them.
    """
    return [variable for variable in model.variables if hasattr(variable, "ref")]


def state_variables(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer and its hyperparameters, which Keras 2 does not list
    among them.
    """
    inner = innermost(optimizer)
    if is_old(inner) and readable():  # it creates these in its first step
        _ = inner.iterations
        inner._create_hypers()
    hyper = inner._hyper.values() if is_old(inner) else [getattr(inner, "_learning_rate", None)]
    own = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return [*own, *(value for value in hyper if isinstance(value, tf.Variable))]


def numbered_state(optimizer: Any) -> dict[Any, Any]:
    """Return the variables of an optimizer by a key that identifies them.

    An old optimizer orders its slots by its steps, so they are identified by the slot's variable.
    """
    inner = innermost(optimizer)
    if not is_old(inner):
        return dict(enumerate(inner.variables))
    slots = {
        (key, name): slot for key, found in inner._slots.items() for name, slot in found.items()
    }
    known = {slot.ref() for slot in slots.values()}
    return {
        **slots,
        **dict(enumerate(each for each in inner.variables() if each.ref() not in known)),
    }


def align_slots(model: Any, held: Sequence[Any]) -> None:
    """Make the same slots on all ranks for optimizers that ``model`` holds in addition to its own.

    Such an optimizer creates slots in its first step, which may be a later batch. If one rank
    resumed from a checkpoint and has slots, the others create theirs now.
    """
    if not held or not readable():
        return
    variables = variables_of(model)
    places = {variable._unique_id: place for place, variable in enumerate(variables)}
    mine = [[places.get(key) for key in keys_of(each)] for each in held]
    for optimizer, *theirs in zip(held, *allgather_object(mine), strict=False):
        of = max(theirs, key=len)
        if None not in of:
            make_slots(optimizer, [variables[place] for place in of])


def keys_of(optimizer: Any) -> list[Any]:
    """Return the keys (``variable._unique_id``) of the variables that have optimizer state."""
    inner = innermost(optimizer)
    return list(inner._slots if is_old(inner) else getattr(inner, "_index_dict", ()))


def innermost(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def is_old(optimizer: Any) -> bool:
    return isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer)


def slots_of(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """Return the state that ``optimizer`` has for ``variables``, such as momenta."""
    inner = innermost(optimizer)
    if is_old(inner):
        return [
            slot
            for variable in variables
            for slot in inner._slots.get(variable._unique_id, {}).values()
        ]
    ends = tuple(f"/{variable._shared_name}:0" for variable in variables)
    return [slot for slot in inner.variables if slot.name.endswith(ends)] if ends else []


def make_slots(optimizer: Any, variables: Sequence[Any]) -> None:
    """Create the state that ``optimizer``'s first step on ``variables`` would create. Existing
    state is unchanged.
    """
    if hasattr(optimizer, "_create_all_weights"):  # an old one
        optimizer._create_all_weights(variables)
    elif hasattr(optimizer, "build") and variables:  # without variables it would count as built
        optimizer.build(variables)
