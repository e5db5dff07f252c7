"""Steps that consist of several backward passes."""

from __future__ import annotations

from collections.abc import Callable

from farandole.job.context import session
from farandole.job.context.membership import reduce_to_most

_COMMIT, _CHECK = -1, -2  # instead of the number of a step
_DOINGS = {_COMMIT: "commits", _CHECK: "calls check_host_updates()"}
# Each callable returns whether an optimizer has a part of a step. Registered by frameworks.
open_steps: list[Callable[[], bool]] = []


def is_between_steps() -> bool:
    """Return whether no optimizer of this process has an incomplete step, so that its state can be
    committed.
    """
    return not any(is_open() for is_open in open_steps)


def announce_commit() -> None:
    """Check that all ranks commit now. See ``announce_step``."""
    _announce(_COMMIT)


def announce_check() -> None:
    """Check that all ranks query changes of hosts now, without a commit. See ``announce_step``."""
    _announce(_CHECK)


def announce_step(number: int) -> None:
    """Check that all ranks exchange the gradients of step ``number`` (from 0) now.

    A rank with more shares of a fixed global batch counts more batches. If it committed after some
    of them, it would wait forever for the other ranks. Ranks with one share each are not checked.
    Raises AssertionError, on all ranks, if some commit or call ``check_host_updates()``, and others
    do not. Collective.
    """
    _announce(number)


def _announce(number: int) -> None:
    if session.shares() <= session.size() or session.size() == 1:
        return
    import numpy as np

    values = np.array([number == _COMMIT, number == _CHECK, number >= 0, number], np.int64)
    reduce_to_most("shares.announcement", values)
    *kinds, step = values.tolist()
    if sum(kinds) > 1:
        done = "commit" if kinds[0] else "call check_host_updates()"
        here = _DOINGS.get(number, "continues")
        raise AssertionError(
            f"after step {max(step, 0)} of a fixed global batch some ranks {done}, and others do"
            f" not: rank {session.rank()} {here}. Ranks have different numbers of shares of a step,"
            " so a count of batches differs between them. Count a step, commit, or call"
            " check_host_updates() only if hvd.elastic.is_step_complete(), or after every batch"
        )
