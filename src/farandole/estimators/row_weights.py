"""Validation of row weights: finite numbers of at least 0. A row with weight 0 does not count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farandole.errors import DataError

if TYPE_CHECKING:
    from farandole.base.types import Array


@dataclass(frozen=True)
class WeightCounts:
    """Counts of weights. ``wrong``: rows whose weight is below 0, NaN or infinite; ``first``: one
    of these weights; ``above``: rows whose weight is above 0.
    """

    wrong: int = 0
    first: float | None = None
    above: int = 0

    def __add__(self, other: WeightCounts) -> WeightCounts:
        first = other.first if self.first is None else self.first
        return WeightCounts(self.wrong + other.wrong, first, self.above + other.above)


def count_weights(weights: Array) -> WeightCounts:
    """Count the weights of some rows."""
    right = np.isfinite(weights) & (weights >= 0)
    wrong = weights[~right]
    first = float(wrong[0]) if len(wrong) else None
    return WeightCounts(len(wrong), first, int(np.count_nonzero(right & (weights > 0))))


def check(name: str, counts: WeightCounts, rows: int, *, everything: bool = False) -> None:
    """Raise DataError for invalid weights, and, if ``everything`` was counted, if no row counts."""
    if counts.wrong:
        raise DataError(
            f"weight column {name!r} holds negative, NaN or infinite numbers in {counts.wrong} of"
            f" {rows} rows, such as {counts.first:g}. Drop such rows (df.filter), or correct them:"
            " a weight is the importance of a row, at least 0"
        )
    if everything and not counts.above:
        raise DataError(
            f"weight column {name!r} is 0 in all {rows} rows, so the model would learn nothing."
            " Give some rows a positive weight"
        )
