"""Batch normalization over the batches of all ranks: the arithmetic, on numpy vectors with a number
per channel.

A rank tells how many values it has, their mean and the sum of their squared distances from it;
these combine exactly, whatever the sizes of the batches: Chan, Golub and LeVeque, "Updating
formulae and a pairwise algorithm for computing sample variances", 1979.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array


class Moments(NamedTuple):
    """Of all ranks' values: how many per channel, their mean, and their (biased) variance."""

    total: float
    mean: Array
    variance: Array


def combined(rows: Array) -> Moments:
    """From a row per rank: the number of its values per channel, then means, then sums of squared
    distances.
    """
    channels = (rows.shape[1] - 1) // 2
    counts, means, squares = rows[:, :1], rows[:, 1 : channels + 1], rows[:, channels + 1 :]
    total = float(counts.sum())
    if not total:
        return Moments(0.0, np.zeros(channels), np.zeros(channels))
    present = counts[:, 0] > 0  # whoever has no values has no mean
    counts, means, squares = counts[present], means[present], squares[present]
    mean = (counts * means).sum(axis=0) / total
    variance = (squares + counts * (means - mean) ** 2).sum(axis=0) / total
    return Moments(total, mean, variance)
