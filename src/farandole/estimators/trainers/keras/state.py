"""The state of Keras training: weights, and the variables and the learning rate of its
optimizer.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from farandole.errors import DataError


class Rates:
    """An optimizer's learning rate: one rank's in saved state, and ``factor`` times that in
    training.

    A schedule (not ``fixed``) is left unchanged. ``given``: the initial rate.
    """

    def __init__(self, optimizer: Any, factor: int) -> None:
        self._optimizer = innermost(optimizer)
        self.factor = factor
        # tf_keras.optimizers.legacy, in which it is not a variable
        old = vars(self._optimizer).get("_hyper")
        self.variable = getattr(self._optimizer, "_learning_rate", None) if old is None else None
        found = self.variable if old is None else old.get("learning_rate")
        self.fixed = found is not None and not callable(found)
        self.given = self._one = self.now if self.fixed else 0.0

    @property
    def now(self) -> float:
        return float(np.asarray(self._optimizer.learning_rate))

    def scale(self) -> None:
        if self.fixed:
            self._one = self.now
            self._optimizer.learning_rate = self._one * self.factor

    def restore(self) -> None:
        if self.fixed:
            self._optimizer.learning_rate = self.one(self.now)
            self.factor = 1

    def one(self, rate: float) -> float:
        """Return one rank's rate, exactly if the rate is unchanged."""
        return (
            self._one if rate == float(np.float32(self._one * self.factor)) else rate / self.factor
        )


def innermost(optimizer: Any) -> Any:
    """Return the optimizer that has the learning rate: loss-scaling optimizers wrap another."""
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return optimizer


def saved(model: Any, rates: Rates) -> bytes:
    """Return weights, optimizer variables, and the learning rate if it is not among them."""
    optimizer = slots(model.optimizer)
    arrays: dict[str, Any] = {f"w{index}": each for index, each in enumerate(model.get_weights())}
    if rates.fixed:
        indices = [
            index
            for index, each in enumerate(_variables(model.optimizer))
            if each is rates.variable
        ]
        for index in indices:
            optimizer[index] = np.asarray(
                rates.one(float(optimizer[index])), optimizer[index].dtype
            )
        if not indices:
            arrays["rate"] = rates.one(rates.now)
    file = io.BytesIO()
    arrays.update({f"o{index}": each for index, each in enumerate(optimizer)})
    np.savez(file, **{name: _native(each) for name, each in arrays.items()})
    return file.getvalue()


def _native(value: Any) -> Any:
    """Return ``value`` in a dtype that NumPy's files support: they would keep only the raw bytes of
    bfloat16. Variables convert it back.
    """
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def load(model: Any, state: bytes) -> None:
    """Load the state from ``saved`` into a compiled model."""
    with np.load(io.BytesIO(state)) as arrays:
        weights = [arrays[f"w{index}"] for index in range(sum(name[0] == "w" for name in arrays))]
        optimizer = [
            arrays[name]
            for name in sorted((n for n in arrays if n[0] == "o"), key=lambda n: int(n[1:]))
        ]
        rate = float(arrays["rate"]) if "rate" in arrays else None
    count = len(model.get_weights())
    if count != len(weights):
        raise DataError(
            f"the trained model has {len(weights)} arrays of weights, but the given one {count}."
            " Pass a built model (with an Input layer, or after model.build(shape))"
        )
    model.set_weights(weights)
    if rate is not None:
        innermost(model.optimizer).learning_rate = rate
    for variable, value in zip(_made(model), optimizer, strict=True):
        variable.assign(value)


def slots(optimizer: Any) -> list[Any]:
    """Return the values of an optimizer's variables."""
    return [np.asarray(each) for each in _variables(optimizer)]


def resume(model: Any, values: list[Any]) -> None:
    """Resume with the state of an optimizer that has trained this model."""
    if values:
        variables = _made(model)
        if [tuple(each.shape) for each in variables] == [each.shape for each in values]:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)


def _made(model: Any) -> list[Any]:
    """Return the variables of a model's optimizer, creating them if it has not taken a step."""
    if hasattr(model.optimizer, "_create_all_weights"):  # tf_keras.optimizers.legacy
        model.optimizer._create_all_weights(model.trainable_variables)
    elif not getattr(model.optimizer, "built", False):
        model.optimizer.build(model.trainable_variables)
    return _variables(model.optimizer)


def _variables(optimizer: Any) -> list[Any]:
    """Return an optimizer's variables, except for gradients accumulated by this rank but not yet
    applied.
    """
    variables = optimizer.variables
    pending: set[int] = set()
    each = optimizer
    while each is not None:  # loss-scaling optimizers wrap another
        pending.update(
            id(variable) for variable in getattr(each, "_accumulated_gradients", None) or ()
        )
        each = getattr(each, "inner_optimizer", None)
    return [
        variable
        for variable in (variables() if callable(variables) else variables)
        if id(variable) not in pending
    ]
