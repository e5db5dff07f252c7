"""Trainers whose ranks step by themselves and exchange weights, as a strategy says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.contracts import Strategy
from farandole.mxnet.names import canonical
from farandole.strategies.options import GradientOptions
from farandole.strategies.weights import WeightExchange

if TYPE_CHECKING:
    from farandole.types import Array


class TrainerExchange:
    """The exchanges of one trainer's weights."""

    def __init__(self, label: str, options: GradientOptions, strategy: Strategy) -> None:
        self._exchange, self._strategy = WeightExchange(label, options, strategy), strategy
        self._slots: list[list[Array]] | None = None
        self._step = 0

    def before_step(self, parameters: Sequence[Any]) -> None:
        if self._slots is None:
            self._slots = self._exchange.slots([_read(parameter) for parameter in _trained(parameters)])

    def after_step(self, parameters: Sequence[Any]) -> None:
        self._exchange.stepped()
        self._step += 1
        if self._slots is None or not self._strategy.due(self._step):
            return
        trained = _trained(parameters)
        weights = [_read(parameter) for parameter in trained]
        names = list(canonical(parameter.name for parameter in trained))
        self._exchange(weights, self._slots, self._step, names)
        for parameter, weight in zip(trained, weights, strict=True):
            for data in parameter.list_data():
                data[:] = weight


def _trained(parameters: Sequence[Any]) -> list[Any]:
    return [parameter for parameter in parameters if parameter.grad_req != "null"]


def _read(parameter: Any) -> Array:
    """A copy, in a type that strategies compute with."""
    array: Array = parameter.list_data()[0].asnumpy()
    return array.astype(np.float64 if array.dtype == np.float64 else np.float32)
