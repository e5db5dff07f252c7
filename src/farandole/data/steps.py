"""The rows of each rank in each step, when rows do not divide evenly into ranks and batches. Pure.

Every rank has the same number of steps in all cases, so no rank waits for one that has run out of
batches.
"""

from __future__ import annotations

from typing import NamedTuple

EVEN = ("exact", "pad", "drop", "weights")


class BatchRows(NamedTuple):
    """The rows of one batch of a rank: its own ``rows``, padded with repeated rows to ``length``.
    ``all_rows``: the rows of all ranks, each once.
    """

    rows: int
    length: int
    all_rows: int


class Steps:
    """A rank's batches of ``left`` rows; the rank takes every ``size``-th row.

    ``least``: with "exact", the minimum rows per rank for a step of its own; fewer join the
    previous step.
    """

    def __init__(
        self, left: int, batch_size: int, rank: int, size: int, even: str, least: int = 1
    ) -> None:
        self._size = size
        full, rest = divmod(left, batch_size * size)
        own = len(range(rank, rest, size))
        self._full = BatchRows(rows=batch_size, length=batch_size, all_rows=batch_size * size)
        self._last: BatchRows | None = None
        if rest and even in ("pad", "weights"):
            self._last = BatchRows(rows=own, length=batch_size, all_rows=rest)
        elif rest and even == "exact" and (rest >= size * least or not full):
            self._last = BatchRows(rows=own, length=max(own, 1), all_rows=rest)
        # otherwise some ranks would have an empty step, so all take the rest in the previous step
        elif rest and even == "exact":
            full -= 1
            rows = batch_size + own
            self._last = BatchRows(rows, length=rows, all_rows=batch_size * size + rest)
        self._before = full
        self.count = full if self._last is None else full + 1
        self.rows = full * batch_size + (self._last.rows if self._last else 0)

    def __getitem__(self, step: int) -> BatchRows:
        return self._full if step < self._before or self._last is None else self._last

    def done(self, steps: int) -> int:
        """Return the number of rows of all ranks that are done after ``steps``."""
        done = min(steps, self._before) * self._full.all_rows
        if self._last is not None and steps > self._before:
            done += self._last.all_rows
        return done
