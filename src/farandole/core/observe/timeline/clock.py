"""One clock for all ranks: that of the driver's host."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

TRIES = 8


def ahead(
    ask: Callable[[], tuple[float, str]], own_name: str, now: Callable[[], float] = monotonic
) -> float:
    """Seconds by which the other clock is ahead of ours. ``ask`` gives its time and its name.

    Nothing, if the two are one clock. Otherwise the quickest of some exchanges counts, and it is
    taken that the clock was read half-way through it; the error is at most half that exchange.
    """
    best, offset = float("inf"), 0.0
    for _ in range(TRIES):
        begin = now()
        theirs, name = ask()
        end = now()
        if name and name == own_name:
            return 0.0
        if end - begin < best:
            best, offset = end - begin, theirs - (begin + end) / 2
    return offset
