"""Optimizers whose ranks step by themselves and exchange weights, as a strategy says; for Keras 3 and Keras 2.

``run_if(due, run, values, step)`` in the backend's file: the tensors ``values`` as they are after ``run(arrays, step)``
wrote to them as arrays (float32 or float64), if it is ``due``. Numbers may be values of a program that is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farandole import context
from farandole.contracts import Strategy
from farandole.strategies.options import GradientOptions
from farandole.strategies.weights import KeptExchange

if TYPE_CHECKING:
    from farandole.types import Array


class KerasExchange:
    """The exchanges of one optimizer's weights. What the strategy keeps is in host memory."""

    def __init__(
        self, options: GradientOptions, strategy: Strategy, tensor_of: Callable[[Any], Any],
        array_of: Callable[[Any], Array],
    ) -> None:  # fmt: skip
        """``tensor_of``, ``array_of``: the value of a variable, as this Keras has it."""
        self._kept, self._strategy = KeptExchange("DistributedOptimizer", options, strategy), strategy
        self._tensor_of, self._array_of = tensor_of, array_of
        self._names: Sequence[str] = ()

    def before_step(self, run_if: Callable[..., Any], variables: Sequence[Any], step: Any, final: Any = True) -> None:
        """Before step number ``step`` (1, 2 ...; it may be a traced number). ``final``: see ``after_step``; a step may
        be computed several times before it counts."""
        context.skip_gradient_check()  # it may be long until the first exchange
        if self._kept.exchange.kinds:
            first = step == 1
            values = [self._tensor_of(variable) for variable in variables]
            run_if(first if final is True else first & final, self._begin, values, step)

    def after_step(
        self, run_if: Callable[..., Any], variables: Sequence[Any], names: Sequence[str], step: Any, final: Any = True
    ) -> None:
        """After it. ``final``: False, if what was computed is going to be dropped (or a traced value for it)."""
        self._kept.exchange.stepped()
        self._names = names
        due = self._strategy.due(step)
        values = [self._tensor_of(variable) for variable in variables]
        told = run_if(due if final is True else due & final, self._run, values, step)
        for variable, value, new in zip(variables, values, told, strict=True):
            if new is not value:
                variable.assign(new)

    def end_of_epoch(self, variables: Sequence[Any], step: int) -> None:
        """Outside of any program. Collective, if the strategy wants to hear of epochs."""
        if self._kept.at_end_of_epoch(step):
            self._outside(variables, lambda arrays: self._run(arrays, step))

    def average(self, variables: Sequence[Any]) -> None:
        """Give every rank the same weights: the mean of all, as a rule. ``variables``: those of the steps, and others
        behind them, which are averaged. Outside of any program; collective."""

        def change(arrays: list[Array]) -> None:
            count = self._kept.count or len(arrays)
            self._kept.average(arrays[:count], self._names or None)
            if arrays[count:]:
                self._kept.exchange.average(arrays[count:])

        self._outside(variables, change)

    def begin_anew(self) -> None:
        """The ranks were given other weights: what the strategy keeps begins at the next exchange."""
        self._kept.begin_anew()

    def state_dict(self) -> dict[str, Any]:
        return self._kept.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept.load_state_dict(state)

    def _outside(self, variables: Sequence[Any], change: Callable[[list[Array]], None]) -> None:
        arrays = [self._array_of(variable).copy() for variable in variables]
        wide = [array if array.dtype.itemsize >= 4 else array.astype("float32") for array in arrays]
        change(wide)
        for variable, array in zip(variables, wide, strict=True):
            variable.assign(array)

    def _begin(self, arrays: Sequence[Array], step: int) -> None:
        self._kept.begin_anew()
        self._kept.begin(arrays, lambda array: array)

    def _run(self, arrays: Sequence[Array], step: int) -> None:
        if self._kept.exchange.kinds and not self._kept.begun:  # training goes on from a file
            self._kept.exchange.average(arrays)
            self._begin(arrays, step)
        else:
            self._kept.begin(arrays, lambda array: array)
            self._kept(arrays, step, self._names)
