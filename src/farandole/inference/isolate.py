"""Which rows of a batch fail: a pure search by halves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from farandole.base.interrupts import interrupts


class RowResult(NamedTuple):
    """Rows ``begin`` to ``end - 1``, with what the call gave for them, or the error of the
    one row.
    """

    begin: int
    end: int
    found: Any = None
    error: Exception | None = None


class BatchError(Exception):
    """Made of an error that no single row has: it ends the search."""


def isolate(call: Callable[[int, int], Any], begin: int, end: int) -> Iterator[RowResult]:
    """``call(begin, end)``, and where it raises, that of each half, down to single rows: in order,
    without gaps.

    A batch that fails because of k rows takes about ``2 k log2(rows)`` calls. One that fails as a
    whole but not in parts (no memory for so many rows) has no failing row.
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
