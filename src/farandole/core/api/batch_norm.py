"""The arithmetic of batch normalization over the batches of all ranks, on numpy vectors with one
number per channel.

A rank reports the number of its values, their mean, and the sum of their squared distances from it.
These combine exactly for batches of any size: Chan, Golub and LeVeque, "Updating formulae and a
pairwise algorithm for computing sample variances", 1979.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array


class Moments(NamedTuple):
    """The moments of all ranks' values: their number per channel, their mean, and their (biased)
    variance.
    """

    total: float
    mean: Array
    variance: Array


def combined(rows: Array) -> Moments:
    """Combine the ranks' rows: the number of values per channel, then the means, then the sums of
    squared distances.
    """
    channels = (rows.shape[1] - 1) // 2
    counts, means, squares = rows[:, :1], rows[:, 1 : channels + 1], rows[:, channels + 1 :]
    total = float(counts.sum())
    if not total:
        return Moments(0.0, np.zeros(channels), np.zeros(channels))
    present = counts[:, 0] > 0  # a rank without values has no mean
    counts, means, squares = counts[present], means[present], squares[present]
    mean = (counts * means).sum(axis=0) / total
    variance = (squares + counts * (means - mean) ** 2).sum(axis=0) / total
    return Moments(total, mean, variance)
