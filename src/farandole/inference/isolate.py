"""Bisection of a batch to find its failing rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from farandole.base.interrupts import interrupts


class RowResult(NamedTuple):
    """Rows ``begin`` to ``end - 1`` with their result, or a single row with its error."""

    begin: int
    end: int
    found: Any = None
    error: Exception | None = None


class BatchError(Exception):
    """An error not caused by a single row; it ends the search."""


def isolate(call: Callable[[int, int], Any], begin: int, end: int) -> Iterator[RowResult]:
    """Yield the result of ``call(begin, end)``; if the call raises, bisect down to single rows.

    Results are in order, without gaps. A batch with k failing rows takes about ``2 k log2(rows)``
    calls. A batch that fails as a whole but not in parts (out of memory) has no failing row.
    """
    try:
        yield RowResult(begin, end, call(begin, end))
        return
    except BatchError:
        raise
    except Exception as error:
        if interrupts(error):
            raise
        if end - begin == 1:
            yield RowResult(begin, end, error=error)
            return
    middle = (begin + end) // 2
    yield from isolate(call, begin, middle)
    yield from isolate(call, middle, end)
