"""The loop of elastic programs: synchronise the state, train, and begin anew when ranks have
changed.

Jobs have a fixed size so far, so ``run`` begins anew only when the program itself says that hosts
have changed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import IntFlag
from typing import Any

from farandole.base.log import logger
from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt
from farandole.job import context
from farandole.job.context.reinit import reinitialize

FIXED = (
    "elastic.run: this job has a fixed size (%d rank%s). The state is synchronised, committed and"
    " restored as in an elastic job, but no rank joins or is replaced: a rank that fails ends"
    " the job"
)


class HostUpdateResult(IntFlag):
    """How the set of hosts changed."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for ``train(state, ...)``: takes over rank 0's state on all ranks, then trains.

    ``state``: a ``TorchState``, ``KerasState`` or another ``State``, given when the function is
    called. Returns what the function returns. HorovodInternalError ends the job: nobody would take
    the place of the rank that was lost. HostsUpdatedInterrupt (the program called
    ``state.on_hosts_updated``) initialises the same ranks anew, with their process sets, calls the
    state's reset callbacks, and trains on.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        if context.rank() == 0:
            _say_fixed(context.size())
        return _loop(func, reinitialize, (HostsUpdatedInterrupt,), state, args, kwargs)

    return wrapper


def run_fn(func: Callable[..., Any], reset: Callable[[], object]) -> Callable[..., Any]:
    """``run`` with a ``reset`` of one's own, which is also called (after ``state.restore()``) when
    a collective has failed with HorovodInternalError.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        return _loop(
            func, reset, (HostsUpdatedInterrupt, HorovodInternalError), state, args, kwargs
        )

    return wrapper


def _loop(
    func: Callable[..., Any],
    reset: Callable[[], object],
    survived: tuple[type[Exception], ...],
    state: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    skip_sync = False
    while True:
        try:
            if not skip_sync:
                state.sync()
            return func(state, *args, **kwargs)
        except survived as error:
            skip_sync = isinstance(error, HostsUpdatedInterrupt) and error.skip_sync
            if isinstance(error, HorovodInternalError):
                state.restore()
        reset()
        state.on_reset()


@functools.cache  # once
def _say_fixed(size: int) -> None:
    logger.warning(FIXED, size, "" if size == 1 else "s")
