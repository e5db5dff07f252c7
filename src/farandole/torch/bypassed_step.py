"""Optimizers whose ranks exchange in ``step()`` alone (strategies of weights, Adasum): is it
called?

A program steps past it when it goes on with the optimizer that was wrapped, or with one of that:
SAM's ``second_step`` calls the step of its base. Then nothing is ever exchanged, without an error.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from farandole.checks.agreement import tell
from farandole.checks.replicas import Finding
from farandole.job import context
from farandole.job.context import ProcessSet

STEPS = 10  # by others, and none of its own

_living: weakref.WeakSet[OwnSteps] = weakref.WeakSet()


class OwnSteps:
    """Counts those of ``optimizer``, and those that others take with its parameters. ``exchange``:
    how to name it.
    """

    def __init__(self, optimizer: Any, process_set: ProcessSet, exchange: str) -> None:
        self._optimizer, self._set, self._exchange = weakref.ref(optimizer), process_set, exchange
        self._others = 0
        _living.add(self)

    def begin(self) -> None:
        """``step()`` was called: it is the way of this program."""
        _living.discard(self)

    def passed(self, other: Any) -> None:
        """Another optimizer has stepped. Raises RanksDifferError with ``--check raise``."""
        optimizer = self._optimizer()
        if optimizer is None or other is optimizer or not share(optimizer, other):
            return
        self._others += 1
        if (
            self._others == STEPS
            and context.takes_part()
            and self._set.included()
            and self._set.size() > 1
        ):
            _living.discard(self)
            engine = context.engine(self._set)
            if context.settings().check != "off":
                tell(
                    engine,
                    [Finding("passed", self._text(type(optimizer).__name__, type(other).__name__))],
                )

    def _text(self, name: str, other: str) -> str:
        return (
            f"{other} has taken {STEPS} steps with the parameters of the distributed {name}, whose"
            f" own step() was never called: {self._exchange} exchanges there alone, so each rank"
            f" trains by itself. Call step() of what DistributedOptimizer returned; where {name}"
            " steps with an optimizer of its own (SAM's second_step), wrap that one:"
            f" DistributedOptimizer({other}(...)). If ranks are meant to train apart: --check off"
        )


def share(one: Any, other: Any) -> bool:
    """Do two optimizers step a parameter in common?"""
    mine = {id(parameter) for group in one.param_groups for parameter in group["params"]}
    return any(
        id(parameter) in mine for group in other.param_groups for parameter in group["params"]
    )


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    for each in list(_living):
        each.passed(optimizer)


register_optimizer_step_post_hook(_stepped)
