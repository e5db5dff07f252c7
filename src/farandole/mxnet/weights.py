"""Trainers that step locally and exchange weights according to a strategy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.contracts import Strategy
from farandole.mxnet.parameter_names import canonical
from farandole.strategies.options import GradientOptions
from farandole.strategies.weights import StatefulExchange

if TYPE_CHECKING:
    from farandole.base.types import Array


class TrainerExchange:
    """The exchanges of one trainer's weights."""

    def __init__(self, label: str, options: GradientOptions, strategy: Strategy) -> None:
        self._kept = StatefulExchange(label, options, strategy)
        self.describe = self._kept.exchange.describe
        self._strategy = strategy
        self._step = 0

    def before_step(self, parameters: Sequence[Any], optimizer: Any) -> None:
        """Raise ValueError if ``optimizer`` would undo exchanges."""
        if not self._kept.begun:
            self._check_precision(parameters, optimizer)
        self._kept.begin(parameters, _read, _trained(parameters), stepping=True)

    def after_step(self, parameters: Sequence[Any]) -> None:
        self._kept.exchange.stepped()
        self._step += 1
        if self._strategy.due(self._step):
            self._run(parameters)

    def end_of_epoch(self, parameters: Sequence[Any]) -> None:
        """Exchange weights now, if the strategy exchanges by epochs."""
        if self._kept.at_end_of_epoch(self._step) and self._kept.begun:
            self._run(parameters)

    def average(self, parameters: Sequence[Any]) -> None:
        """Replace each rank's weights by their mean over all ranks."""
        self._kept.begin(parameters, _read, _trained(parameters))
        self._change(parameters, self._kept.average)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps, and the strategy's state; see ``StatefulExchange``."""
        return {**self._kept.state_dict(), "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. Raises ValueError for the state of another strategy."""
        self._kept.load_state_dict(state)
        self._step = state["step"]

    def share(self, state: Mapping[str, Any]) -> None:
        """Load rank 0's state, on all ranks. If the strategy does not keep it equal on all of them,
        it begins again, apart from the number of steps.
        """
        self._kept.exchange.forget_kept()
        if self._strategy.reference.same_slots:
            self.load_state_dict(state)
        else:
            self._kept.restart()
            self._step = state["step"]

    def _check_precision(self, parameters: Sequence[Any], optimizer: Any) -> None:
        trained = itertools.compress(parameters, _trained(parameters))
        half = [parameter.name for parameter in trained if np.dtype(parameter.dtype) == np.float16]
        if half and getattr(optimizer, "multi_precision", False):
            raise ValueError(
                f"strategy={self._strategy.spec!r} exchanges weights, but with"
                f" multi_precision=True the optimizer steps with float32 copies of {half[0]} and"
                f" {len(half) - 1} others, which would undo the exchange. Keep parameters in"
                " float32 (net.cast('float32')), or remove strategy="
            )

    def _run(self, parameters: Sequence[Any]) -> None:
        self._change(parameters, lambda weights, names: self._kept(weights, self._step, names))

    def _change(
        self, parameters: Sequence[Any], change: Callable[[list[Array], list[str]], None]
    ) -> None:
        trained = self._kept.chosen(parameters)
        weights = [_read(parameter) for parameter in trained]
        # names count all parameters, so they do not change when some are frozen
        names = canonical(parameter.name for parameter in parameters)
        change(weights, self._kept.chosen(list(names)))
        for parameter, weight in zip(trained, weights, strict=True):
            for data in parameter.list_data():
                data[:] = weight


def _trained(parameters: Sequence[Any]) -> list[bool]:
    return [parameter.grad_req != "null" for parameter in parameters]


def _read(parameter: Any) -> Array:
    """Return a copy, in a type that strategies compute with."""
    array: Array = parameter.list_data()[0].asnumpy()
    return array.astype(np.float64 if array.dtype == np.float64 else np.float32)
