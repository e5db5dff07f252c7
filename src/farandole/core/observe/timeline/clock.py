"""One clock for all ranks: the clock of the driver's host."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

TRIES = 8


def ahead(
    ask: Callable[[], tuple[float, str]], own_name: str, now: Callable[[], float] = monotonic
) -> float:
    """Return the seconds by which the other clock is ahead of this one.

    ``ask`` returns the time and the name of the other clock. Clocks with the same name are the same
    clock, and the result is 0. Otherwise, the fastest of several exchanges counts, on the
    assumption that the clock was read half-way through it. The error is at most half the duration
    of this exchange.
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
