"""Optimizers that are not distributed, in a job of several ranks: noticed by their steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from farandole import context
from farandole.engine import Engine
from farandole.frontend.solo import compared, tell_solo
from farandole.observe.replicas import combined
from farandole.torch.replica import CURES, digests

STEPS = 100  # so many steps without an exchange are training
_NUMBERS = 64  # of gradients in one piece; metrics are fewer, and so are the gradients of a small model


class _Watch:
    """The first optimizer that steps in a job. All that a step costs is a look and an addition."""

    def __init__(self, engine: Engine, optimizer: Any) -> None:
        self._engine, self._optimizer = weakref.ref(engine), weakref.ref(optimizer)
        self._digest = 0
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
        others = torch.distributed
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        enough = min(_NUMBERS, sum(parameter.numel() for parameter in parameters) / 10)
        if (
            context.gradient_check_skipped()
            or context.largest_exchange() >= enough
            or (others.is_available() and others.is_initialized())
        ):
            self._next = 0
            return
        if not self._digest:
            self._digest = combined(digests(parameters))
        found = compared(self._digest)
        if found is not None or context.rank():
            self._next = 0
        if found is not None:
            tell_solo(
                f"every rank took {STEPS} steps with {type(optimizer).__name__}", found,
                f"begin alike ({CURES.broadcast}), and wrap the optimizer: hvd.DistributedOptimizer(optimizer, "
                "named_parameters=model.named_parameters()). If they are meant to train apart: --check off",
            )  # fmt: skip


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


register_optimizer_step_post_hook(_stepped)
