"""Optimizers that are not distributed, in a job of several ranks: noticed by their steps."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from farandole import context
from farandole.engine import Engine
from farandole.errors import RanksDifferError
from farandole.frontend.solo import MOMENT, compared, tell_solo
from farandole.log import logger
from farandole.observe.replicas import combined
from farandole.report import reporter
from farandole.torch.replica import CURES, digests

STEPS = 100  # so many steps without an exchange are training
_NUMBERS = 64  # of gradients in one piece; metrics are fewer, and so are the gradients of a small model


class _Watch:
    """The first optimizer that steps in a job. All that a step costs is a look and an addition."""

    def __init__(self, engine: Engine, optimizer: Any) -> None:
        self._engine, self._optimizer = weakref.ref(engine), weakref.ref(optimizer)
        self._digest, self._kind, self._enough = 0, "", 0.0
        self._next = STEPS if engine.size > 1 and context.settings().check != "off" else 0
        self._count = 0

    def of(self, engine: Engine | None) -> bool:
        return self._engine() is engine

    def stepped(self, optimizer: Any) -> None:
        if not self._next or self._optimizer() is not optimizer:
            return
        self._count += 1
        if self._count == self._next:
            self._next *= 2
            self._look(optimizer)

    def _look(self, optimizer: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._enough = min(_NUMBERS, sum(parameter.numel() for parameter in parameters) / 10)
        if not self._digest and self._alone():
            self._digest, self._kind = combined(digests(parameters)), type(optimizer).__name__
        self._ask()

    def _alone(self) -> bool:
        others = torch.distributed
        return not (
            context.gradient_check_skipped()
            or context.largest_exchange() >= self._enough
            or (others.is_available() and others.is_initialized())
        )

    def _ask(self, seconds: float = 0.0) -> None:
        if not self._alone():
            self._next = 0
            return
        found = compared(self._digest, seconds)
        if found is not None or context.rank():
            self._next = 0
        if found is not None:
            tell_solo(
                f"every rank took {STEPS} steps with {self._kind}", found,
                f"begin alike ({CURES.broadcast}), and wrap the optimizer: hvd.DistributedOptimizer(optimizer, "
                "named_parameters=model.named_parameters()). If they are meant to train apart: --check off",
            )  # fmt: skip

    def at_the_end(self) -> None:
        """Of a training that is over before rank 0 looks again: the others may have come to their step since."""
        engine = self._engine()
        if self._digest and self._next and engine is not None and not engine.ended and not reporter.failed():
            try:
                self._ask(MOMENT)
            except RanksDifferError as error:  # of --check raise; it is too late for that
                logger.warning(error)


def none_stepped() -> Callable[[], bool]:
    """A function that says whether no torch optimizer has stepped in this stay in the job."""
    engine = weakref.ref(context.engine())
    return lambda: _watch is None or not _watch.of(engine())


_watch: _Watch | None = None


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    global _watch
    if not context.takes_part():
        return
    engine = context.engine()
    if _watch is None or not _watch.of(engine):
        _watch = _Watch(engine, optimizer)
    _watch.stepped(optimizer)


def _leave() -> None:
    if _watch is not None and context.takes_part() and _watch.of(context.engine()):
        _watch.at_the_end()


register_optimizer_step_post_hook(_stepped)
atexit.register(_leave)
