"""The loop of elastic programs: synchronize the state, train, and restart when ranks have changed.

In a job of a fixed size, ``run`` restarts only if the program itself reports that hosts have
changed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from farandole.base.log import logger
from farandole.core.api.repetitions import Repetitions
from farandole.core.api.state import ObjectState as ObjectState
from farandole.core.api.state import State as State
from farandole.errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    PeerLostError,
    RepeatedFailureError,
    ShutDownError,
)
from farandole.job import context
from farandole.job.context.reinit import reinitialize
from farandole.job.elastic.changes import HostUpdateResult as HostUpdateResult
from farandole.job.report.outcome import follows_loss

_SURVIVED = (HostsUpdatedInterrupt, HorovodInternalError)
FIXED = (
    "elastic.run: this job has a fixed size (%d rank%s). The state is synchronized, committed and"
    " restored as in an elastic job, but ranks are not added or replaced: a rank that fails ends"
    " the job. Make it elastic with --min-np"
)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function, so that it starts from rank 0's state on all ranks and restarts
    when ranks are lost or added.

    ``func``: the function ``train(state, ...)``. ``state`` is a ``TorchState``, ``KerasState`` or
    another ``State``. Returns the decorated function, which returns the result of ``func``.

    In an elastic job (``min_np``), the loss of a rank raises HorovodInternalError on the other
    ranks. They restore the last commit, form a new membership in the same processes without the
    lost rank, and call ``func`` again. When hosts are added or removed, ``state.commit()`` raises
    HostsUpdatedInterrupt, which has the same effect, but restores nothing. Before ``func`` is
    called again, the state's reset callbacks run. If the same collective fails three times in a row
    although no rank was lost, all ranks raise RepeatedFailureError.

    In a job of a fixed size, HorovodInternalError ends the job, and HostsUpdatedInterrupt (after a
    call of ``state.on_hosts_updated`` by the program) initializes the same ranks again.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        if context.is_elastic():
            return _loop(func, reinitialize, _SURVIVED, state, args, kwargs)
        # With ``--commit-dir`` the program relies on restarts.
        if context.rank() == 0 and not (context.takes_part() and context.settings().commit_dir):
            _warn_of_fixed_size(context.size())
        return _loop(func, reinitialize, (HostsUpdatedInterrupt,), state, args, kwargs)

    return wrapper


def run_fn(func: Callable[..., Any], reset: Callable[[], object]) -> Callable[..., Any]:
    """Decorate ``func`` like ``run``, with a function of the program that resets the ranks.

    ``reset`` is called without arguments after HostsUpdatedInterrupt, and after
    HorovodInternalError and ``state.restore()``, also in a job of a fixed size.
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
    """Call ``func``, and call it again after each error in ``survived``.

    In an elastic job, either all ranks synchronize the state or none does: a single rank that
    skipped the synchronization would leave the others waiting.
    """
    skip_sync = False
    failures = Repetitions()
    is_reset = context.join()
    keeper = state._keeper = _keeper(state)
    while True:
        try:
            if is_reset:
                is_reset = False
                state.on_reset()
            if context.is_elastic():
                skip_sync = context.agree(skip_sync, failures.count)
                failures.check(context.most_failures())
            if not skip_sync:
                if keeper is not None:
                    keeper.load(state)
                state.sync()
                if keeper is not None:
                    keeper.use_own_values(state)
                context.count_sync()
            if keeper is not None:
                keeper.hand_over(state)
            if context.is_elastic() and isinstance(state, State):
                state.begin_checks()
            with context.object_names().within():
                result = func(state, *args, **kwargs)
            if keeper is not None:
                keeper.finish()
            return result
        except Exception as error:
            lost = HorovodInternalError in survived and _is_lost(error)
            if not lost and not isinstance(error, survived):
                raise
            skip_sync = isinstance(error, HostsUpdatedInterrupt) and error.skip_sync
            if lost:
                if _is_own(error):
                    failures.add(error, context.commits())
                    _warn_of_own(error)
                # An asynchronous centre is never rolled back; its ranks continue from it.
                if not (context.is_elastic() and context.follows_centre()):
                    state.restore()
            elif keeper is not None:
                keeper.flush()
        _reset(reset)
        is_reset = True


def _keeper(state: Any) -> Any:
    """Return the keeper of the state's commits; None if commits are kept only in this rank's
    memory.
    """
    if not context.takes_part():
        return None
    settings = context.settings()
    is_copied = context.is_elastic() and settings.commit_copies and isinstance(state, ObjectState)
    has_own_values = bool(is_copied and state.merges_of_own_values())
    if not settings.commit_dir and not has_own_values:
        return None
    from farandole.core.api.commits.keeper import keeper_of  # imported here: few jobs need it

    return keeper_of(settings, has_own_values)


def _is_lost(error: Exception) -> bool:
    """Return whether ``error`` means that a collective has failed. Compiled functions of TensorFlow
    and JAX wrap it in their own error classes.
    """
    return isinstance(error, HorovodInternalError) or (
        not isinstance(error, (HostsUpdatedInterrupt, RepeatedFailureError)) and follows_loss(error)
    )


def _is_own(error: Exception) -> bool:
    """Return whether an error was not caused by a lost rank, and may occur again."""
    of_others = isinstance(error, (PeerLostError, ShutDownError))
    return isinstance(error, HorovodInternalError) and not of_others


def _warn_of_own(error: Exception) -> None:
    logger.warning(
        "elastic.run returns to the last commit after %s: %s", type(error).__name__, error
    )


def _reset(reset: Callable[[], object]) -> None:
    """Call ``reset``; in an elastic job, call it again after each loss of a rank during the
    call.
    """
    while True:
        try:
            reset()
            return
        except HorovodInternalError:
            if not context.is_elastic():
                raise


@functools.cache  # logged once
def _warn_of_fixed_size(size: int) -> None:
    logger.warning(FIXED, size, "" if size == 1 else "s")
