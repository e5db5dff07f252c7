"""Optimizers that are not distributed, in a job of several ranks: noticed by their steps."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from farandole.base.digests import combined, digest_of_text
from farandole.base.log import logger
from farandole.checks.unwrapped_optimizer import (
    MOMENT,
    compared,
    tell_beside,
    tell_solo,
    tell_unused,
)
from farandole.core.engine import Engine
from farandole.errors import RanksDifferError
from farandole.job import context
from farandole.job.report import reporter
from farandole.torch.bypassed_step import share
from farandole.torch.checks import CURES, digests
from farandole.torch.discarded_results import listen, unused

STEPS = 100  # so many steps without an exchange are training
# of gradients in one piece; metrics are fewer, and so are the gradients of a small model
_NUMBERS = 64
_WATCHED = 32  # optimizers; more are made for a while each

distributed: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers that exchange something


class _Watch:
    """An optimizer that steps in a job, the first or one beside those that are distributed. All
    that a step costs is a look and an addition.
    """

    def __init__(self, engine: Engine, number: int) -> None:
        self._engine, self._number = weakref.ref(engine), number
        self._digest, self._kind, self._enough = 0, "", 0.0
        # what ranks know the optimizer by; empty for the first, where none is distributed
        self._of = ""
        self._next = STEPS if engine.size > 1 and context.settings().check != "off" else 0
        self._count = 0
        self._unused = 0  # gradients that the program reduced, and stepped with as they were

    def of(self, engine: Engine | None) -> bool:
        return self._engine() is engine

    def stepped(self, optimizer: Any) -> None:
        if not self._next:
            return
        self._count += 1
        if self._count == STEPS - 1:
            listen()
        if self._count == self._next:
            self._next *= 2
            self._look(optimizer)

    def _look(self, optimizer: Any) -> None:
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        self._enough = min(_NUMBERS, sum(parameter.numel() for parameter in parameters) / 10)
        if not self._digest:
            self._unused = unused(parameters)
            self._kind = type(optimizer).__name__
            if len(distributed):
                shapes = [list(parameter.shape) for parameter in parameters]
                self._of = f"/{self._number}.{digest_of_text(f'{self._kind}{shapes}')}"
                self._kind += (
                    " (parameters of shapes"
                    f" {', '.join(map(str, shapes[:3]))}{', ...' * (len(shapes) > 3)})"
                )
                if any(one is optimizer or share(one, optimizer) for one in tuple(distributed)):
                    self._next = 0
                    return
            if self._alone():
                self._digest = combined(digests(parameters))
        self._ask()

    def _alone(self) -> bool:
        others = torch.distributed
        return bool(self._unused) or not (
            (not self._of and (context.exchange_counts().skipped or self._number))
            or context.largest_exchange(by_program=bool(self._of)) >= self._enough
            or (others.is_available() and others.is_initialized())
        )

    def _ask(self, seconds: float = 0.0) -> None:
        if not self._alone():
            self._next = 0
            return
        found = compared(self._digest, 0.0 if self._of else seconds, self._of)
        if found is not None or context.rank():
            self._next = 0
        if found is not None:
            what = f"every rank took {STEPS} steps with {self._kind}"
            cure = (
                f"begin alike ({CURES.broadcast}), and wrap the optimizer:"
                " hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())."
                " If they are meant to train apart: --check off"
            )
            if self._unused:
                tell_unused(what, found, self._unused)
            elif self._of:
                tell_beside(what, found, cure)
            else:
                tell_solo(what, found, cure)

    def at_the_end(self) -> None:
        """Of a training that is over before rank 0 looks again: the others may have come to their
        step since.
        """
        engine = self._engine()
        if (
            self._digest
            and self._next
            and engine is not None
            and not engine.ended
            and not reporter.failed()
        ):
            try:
                self._ask(MOMENT)
            except RanksDifferError as error:  # of --check raise; it is too late for that
                logger.warning(error)


def none_stepped() -> Callable[[], bool]:
    """A function that says whether no torch optimizer has stepped in this stay in the job."""
    engine = weakref.ref(context.engine())
    return lambda: not _watches or not _watches[0].of(engine())


_watches: list[_Watch] = []  # of one stay in the job
_of: weakref.WeakKeyDictionary[Any, _Watch] = weakref.WeakKeyDictionary()


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not context.takes_part():
        return
    engine = context.engine()
    if _watches and not _watches[0].of(engine):
        _watches.clear()
        _of.clear()
    watch = _of.get(optimizer)
    if watch is None:
        if len(_watches) == _WATCHED:
            return
        watch = _of[optimizer] = _Watch(engine, len(_watches))
        _watches.append(watch)
    watch.stepped(optimizer)


def _leave() -> None:
    if _watches and context.takes_part() and _watches[0].of(context.engine()):
        for watch in _watches:
            watch.at_the_end()


register_optimizer_step_post_hook(_stepped)
atexit.register(_leave)
