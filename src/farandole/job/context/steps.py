"""Steps that consist of several backward passes."""

from __future__ import annotations

from collections.abc import Callable

from farandole.job.context import session
from farandole.job.context.membership import reduce_to_most

# Each callable returns whether an optimizer has a part of a step. Registered by frameworks.
open_steps: list[Callable[[], bool]] = []


def is_between_steps() -> bool:
    """Return whether no optimizer of this process has an incomplete step, so that its state can be
    committed.
    """
    return not any(is_open() for is_open in open_steps)


def announce_commit() -> None:
    """Check that all ranks are about to commit. See ``announce_step``."""
    _announce(-1)


def announce_step(number: int) -> None:
    """Check that all ranks are about to exchange the gradients of step ``number``, from 0.

    With more shares of a fixed global batch, a rank counts more batches. If it commits after some
    of them, it would wait forever for the other ranks. Ranks with one share each are not checked.
    Raises AssertionError, on all ranks, if some commit and others do not. Collective.
    """
    _announce(number)


def _announce(number: int) -> None:
    if session.shares() <= session.size() or session.size() == 1:
        return
    import numpy as np

    values = np.array([number < 0, number >= 0, number], np.int64)
    reduce_to_most("shares.announcement", values)
    commits, steps, step = values.tolist()
    if commits and steps:
        here = "commits" if number < 0 else "does not"
        raise AssertionError(
            f"after step {step} of a fixed global batch some ranks commit, and others continue"
            f" without a commit: rank {session.rank()} {here}. Ranks have different numbers of"
            " shares of a step, so a count of batches differs between them. Count a step, or"
            " commit, only if hvd.elastic.is_step_complete(), or call commit() after every batch"
        )
