"""Sums and means over the rows of all ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

import farandole.numpy as hvd


def sums(values: Sequence[float]) -> list[float]:
    """Of all ranks' values, place by place."""
    found: list[float] = hvd.allreduce(np.array(values, np.float64), op=hvd.Sum).tolist()
    return found


def means(of_rank: Mapping[str, float], rows: int) -> dict[str, float]:
    """Of numbers that are means over so many rows of this rank; NaN if no rank has any."""
    *totals, count = sums([*(number * rows for number in of_rank.values()), rows])
    return {
        name: total / count if count else math.nan
        for name, total in zip(of_rank, totals, strict=True)
    }
