"""Optimizers whose ranks step by themselves and exchange weights, as a strategy says."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from farandole.contracts import Strategy
from farandole.strategies.options import GradientOptions
from farandole.strategies.weights import WeightExchange

if TYPE_CHECKING:
    from farandole.types import Array

_WIDE = (torch.float32, torch.float64)  # what strategies compute with


class WeightState:
    """The exchanges of one optimizer's weights. See ``optimizer.OptimizerState``."""

    def __init__(
        self, optimizer: Any, original: weakref.ref[Any], options: GradientOptions, strategy: Strategy,
        buffers: Iterable[Any],
    ) -> None:  # fmt: skip
        self.reducer = None  # gradients stay as they are
        self._optimizer, self._original = weakref.ref(optimizer), original
        self._strategy, self._exchange = strategy, WeightExchange("DistributedOptimizer", options, strategy)
        self._buffers = [buffer for buffer in buffers if buffer.is_floating_point()]
        self._slots: list[list[Array]] | None = None
        self._step = 0

    def look_around(self) -> None: ...
    def synchronize(self) -> None: ...

    def before_step(self, with_closure: bool) -> None:
        original = self._original()
        if original is not None and "step" in original.__dict__:  # a scheduler watches that one
            original._opt_called = True
        if self._exchange.needed():
            self._keep()

    def after_step(self) -> None:
        self._exchange.stepped()
        self._step += 1
        if self._exchange.needed() and self._strategy.due(self._step):
            self._run(self._step)

    def end_of_epoch(self) -> None:
        """Exchange now, if the strategy wants to hear of epochs."""
        if self._exchange.needed() and self._strategy.epochs:
            self._run(self._step)

    def average(self) -> None:
        if self._exchange.needed():
            held = [Held(tensor) for _, tensor in self._parameters()] + [Held(buffer) for buffer in self._buffers]
            self._exchange.average([one.array for one in held])
            for one in held:
                one.put_back()

    def averaged(self, closure: Any) -> Any:
        """Every rank follows its own loss."""
        return closure

    def state_dict(self) -> dict[str, Any]:
        slots = [[torch.from_numpy(array.copy()) for array in slot] for slot in self._slots or ()]
        return {"strategy": self._strategy.spec, "step": self._step, "slots": slots}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Raises ValueError for the state of another strategy."""
        self._slots, self._step = None, 0
        if state is None:
            return
        if state["strategy"] != self._strategy.spec:
            raise ValueError(
                f"the checkpoint is of strategy {state['strategy']!r}, and this optimizer has {self._strategy.spec!r}: "
                "give it the same one, or remove 'farandole' from the state_dict to begin anew"
            )
        self._step = state["step"]
        kept = [[tensor.numpy().copy() for tensor in slot] for slot in state["slots"]]
        new = self._exchange.slots([Held(parameter).array for _, parameter in self._parameters()])[len(kept) :]
        self._slots = [*kept[: len(self._exchange.kinds)], *new]

    def _parameters(self) -> list[tuple[str, Any]]:
        optimizer: Any = self._optimizer()
        names = optimizer._parameter_names
        return [
            (names.get(parameter, "parameter"), parameter)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.is_floating_point()
        ]

    def _keep(self) -> None:
        """Begin the slots of parameters that are new."""
        parameters = self._parameters()
        known = len(self._slots[0]) if self._slots else 0
        if self._slots is not None and (not self._slots or len(parameters) == known):
            return
        fresh = self._exchange.slots([Held(parameter).array for _, parameter in parameters[known:]])
        self._slots = fresh if self._slots is None else [[*a, *b] for a, b in zip(self._slots, fresh, strict=True)]

    def _run(self, step: int) -> None:
        self._keep()
        assert self._slots is not None
        named = self._parameters()
        weights, statistics = [Held(parameter) for _, parameter in named], [Held(buffer) for buffer in self._buffers]
        self._exchange(
            [one.array for one in weights], self._slots, step, [name for name, _ in named],
            statistics=[one.array for one in statistics],
        )  # fmt: skip
        for one in (*weights, *statistics):
            one.put_back()


class Held:
    """A tensor as an array that a strategy may change: its own memory, or a copy that goes back."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor.detach()
        plain = self._tensor.is_cpu and self._tensor.dtype in _WIDE and self._tensor.is_contiguous()
        self._copy: Any = None if plain else self._copied()
        self.array: Array = (self._tensor if self._copy is None else self._copy).numpy()

    def _copied(self) -> Any:
        wide = self._tensor.dtype if self._tensor.dtype in _WIDE else torch.float32
        return self._tensor.to("cpu", wide, copy=True).contiguous()

    def put_back(self) -> None:
        if self._copy is not None:
            self._tensor.copy_(self._copy)
