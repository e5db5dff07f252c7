"""What this session has seen of training: parameters that all ranks were given, and exchanges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from farandole.job.context import session

if TYPE_CHECKING:
    from farandole.core.observe.exchanges import ExchangeCounts

_WATCHED = 16  # broadcasts whose parameters are looked at once more at the end


def add_parameters_broadcast(
    elements: int, unchanged: Callable[[], bool | None] | None = None
) -> None:
    """All ranks were given the same parameters, so many numbers: training is expected to begin.
    ``unchanged`` says at the end whether they are still the same, so that there was none; None if
    it cannot know.
    """
    counts = session.current().observers.exchange_counts
    counts.add_broadcast(elements)
    if unchanged is not None and len(counts.unchanged) < _WATCHED:
        counts.unchanged.append(unchanged)


def parameters_broadcast() -> int:
    """How many numbers all ranks were given alike."""
    return session.current().observers.exchange_counts.broadcast


def largest_exchange(*, by_program: bool = False) -> int:
    """How many numbers the largest piece had that ranks have put together; ``by_program``: not by
    an optimizer.
    """
    counts = session.current().observers.exchange_counts
    return counts.by_program if by_program else counts.exchanged


def exchanges_no_gradients() -> bool:
    """Did the ranks begin alike, and exchange no gradients since?"""
    return session.current().observers.exchange_counts.no_gradients(session.size())


def exchange_counts() -> ExchangeCounts:
    """Return the counts of what the ranks have exchanged since ``init()``."""
    return session.current().observers.exchange_counts


def skip_exchange_check() -> None:
    """Gradients are exchanged where the engine cannot see it, or the user was told already that
    they are not.
    """
    session.current().observers.exchange_counts.skipped = True
