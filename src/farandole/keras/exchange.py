"""Optimizers whose ranks step by themselves and exchange weights, as a strategy says; on whatever backend Keras has.

``run_if(due, run, values, step)`` in the backend's file: the tensors ``values`` as they are after ``run(arrays, step)``
wrote to them as arrays (float32 or float64), if it is ``due``. Numbers may be values of a program that is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras

from farandole.contracts import Strategy
from farandole.strategies.options import GradientOptions
from farandole.strategies.weights import WeightExchange

if TYPE_CHECKING:
    from farandole.types import Array


Run = Callable[[Sequence[Any], int], None]  # arrays, and the number of the step


class KerasExchange:
    """The exchanges of one optimizer's weights. What the strategy keeps is in host memory."""

    def __init__(self, options: GradientOptions, strategy: Strategy) -> None:
        self._exchange, self._strategy = WeightExchange("DistributedOptimizer", options, strategy), strategy
        self._slots: list[list[Array]] = []
        self._names: Sequence[str] = ()

    def before_step(self, run_if: Callable[..., Any], variables: Sequence[Any], step: Any) -> None:
        """Before step number ``step`` (1, 2 ...; it may be a traced number)."""
        if self._exchange.kinds:
            run_if(step == 1, self._keep, _values(variables), step)

    def after_step(
        self, run_if: Callable[..., Any], variables: Sequence[Any], names: Sequence[str], step: Any, final: Any = True
    ) -> None:
        """After it. ``final``: False, if what was computed is going to be dropped (or a traced value for it)."""
        self._exchange.stepped()
        self._names = names
        due = self._strategy.due(step)
        values = _values(variables)
        told = run_if(due if final is True else due & final, self._run, values, step)
        for variable, value, new in zip(variables, values, told, strict=True):
            if new is not value:
                variable.assign(new)

    def end_of_epoch(self, variables: Sequence[Any], step: int) -> None:
        """Outside of any program. Collective, if the strategy wants to hear of epochs."""
        if self._strategy.epochs:
            self._outside(variables, lambda arrays: self._run(arrays, step))

    def average(self, variables: Sequence[Any]) -> None:
        """Give every rank the mean of all ranks' weights. Outside of any program; collective."""
        self._outside(variables, self._exchange.average)

    def _outside(self, variables: Sequence[Any], change: Callable[[list[Array]], None]) -> None:
        arrays = [keras.ops.convert_to_numpy(variable).copy() for variable in variables]
        wide = [array if array.dtype.itemsize >= 4 else array.astype("float32") for array in arrays]
        change(wide)
        for variable, array in zip(variables, wide, strict=True):
            variable.assign(array)

    def _keep(self, arrays: Sequence[Array], step: int) -> None:
        self._slots = self._exchange.slots(arrays)

    def _run(self, arrays: Sequence[Array], step: int) -> None:
        if self._exchange.kinds and not self._slots:  # training goes on from a file
            self._exchange.average(arrays)
            self._slots = self._exchange.slots(arrays)
        else:
            self._exchange(arrays, self._slots, step, self._names)


def _values(variables: Sequence[Any]) -> list[Any]:
    return [keras.ops.convert_to_tensor(variable) for variable in variables]
