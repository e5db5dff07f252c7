"""Records of training in this session: broadcast parameters and exchanges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from farandole.job.context import session

if TYPE_CHECKING:
    from farandole.core.observe.exchanges import ExchangeCounts

_WATCHED = 16  # broadcasts whose parameters are checked again at the end


def add_parameters_broadcast(
    elements: int, unchanged: Callable[[], bool | None] | None = None
) -> None:
    """Record that all ranks received the same parameters, ``elements`` numbers: training is
    expected to begin.

    ``unchanged`` is called at the end and returns whether the parameters are still the same, i.e.
    there was no training; None if unknown.
    """
    counts = session.current().observers.exchange_counts
    counts.add_broadcast(elements)
    if unchanged is not None and len(counts.unchanged) < _WATCHED:
        counts.unchanged.append(unchanged)


def parameters_broadcast() -> int:
    """Return how many numbers all ranks received in broadcasts."""
    return session.current().observers.exchange_counts.broadcast


def largest_exchange(*, by_program: bool = False) -> int:
    """Return the size in numbers of the largest reduced piece; ``by_program`` excludes
    optimizers.
    """
    counts = session.current().observers.exchange_counts
    return counts.by_program if by_program else counts.exchanged


def exchanges_no_gradients() -> bool:
    """Return whether the ranks started with equal parameters and have exchanged no gradients
    since.
    """
    return session.current().observers.exchange_counts.no_gradients(session.size())


def exchange_counts() -> ExchangeCounts:
    """Return the counts of what the ranks have exchanged since ``init()``."""
    return session.current().observers.exchange_counts


def skip_exchange_check() -> None:
    """Disable the check for exchanged gradients.

    For gradients that are exchanged outside the engine, and for users who were already warned.
    """
    session.current().observers.exchange_counts.skipped = True
