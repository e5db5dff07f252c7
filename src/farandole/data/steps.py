"""How many rows each rank takes in each step, where rows do not divide by ranks and batches. Pure.

Every rank has the same number of steps whatever is chosen, so no rank waits for one that has run
out of batches.
"""

from __future__ import annotations

from typing import NamedTuple

EVEN = ("exact", "pad", "drop", "weights")


class BatchRows(NamedTuple):
    """One batch of a rank: its own ``rows``, and others (taken twice) up to ``length``;
    ``everybody``: the rows of all ranks, each once.
    """

    rows: int
    length: int
    everybody: int


class Steps:
    """A rank's batches of ``left`` rows, of which it takes every ``size``-th. ``least``: rows of a
    rank, with "exact", that are worth a step of their own; fewer join the step before.
    """

    def __init__(
        self, left: int, batch_size: int, rank: int, size: int, even: str, least: int = 1
    ) -> None:
        self._size = size
        full, rest = divmod(left, batch_size * size)
        own = rest // size + (rank < rest % size)
        self._full = BatchRows(batch_size, batch_size, batch_size * size)
        self._last: BatchRows | None = None
        if rest and even in ("pad", "weights"):
            self._last = BatchRows(own, batch_size, rest)
        elif rest and even == "exact" and (rest >= size * least or not full):
            self._last = BatchRows(own, max(own, 1), rest)
        # some ranks would have a step with no row: all have more in the step before
        elif rest and even == "exact":
            full -= 1
            self._last = BatchRows(batch_size + own, batch_size + own, batch_size * size + rest)
        self._before = full
        self.count = full + (self._last is not None)
        self.rows = full * batch_size + (self._last.rows if self._last else 0)

    def __getitem__(self, step: int) -> BatchRows:
        return self._full if step < self._before or self._last is None else self._last

    def done(self, steps: int) -> int:
        """How many rows of all ranks are done after ``steps``."""
        before = min(steps, self._before) * self._full.everybody
        return before + (self._last.everybody if self._last and steps > self._before else 0)
