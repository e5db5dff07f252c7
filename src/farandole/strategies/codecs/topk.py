"""``topk:r``: the fraction r of values with the largest magnitudes. The others accumulate as
residuals.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from farandole.strategies.codecs.base import number
from farandole.strategies.codecs.momentum import MaskedMomentum
from farandole.strategies.codecs.sparse import Sparse

if TYPE_CHECKING:
    from farandole.base.types import Array

_SAMPLE = 4096  # values sampled to estimate a bound; smaller values are not sorted


class TopK(MaskedMomentum, Sparse):
    """Top-k sparsification (Aji & Heafield 2017; Lin et al. 2018). At least one value per bucket is
    sent.
    """

    name = "topk"

    def __init__(self, ratio: str | float) -> None:
        super().__init__(str(ratio))
        self._ratio = number(self.name, ratio, float, "the fraction of values to send", 0, 1)
        self.gamma = min(self.gamma, 2 * self._ratio)

    def select(self, values: Array) -> Array:
        count = math.ceil(self._ratio * len(values))
        return largest(np.abs(values), count)


def largest(sizes: Array, count: int) -> Array:
    """Return the indices of the ``count`` largest ``sizes``, in ascending order, as uint32. NaN
    counts as largest.
    """
    candidates = _above_estimate(sizes, count)
    among = sizes if candidates is None else sizes[candidates]
    if count < len(among):
        chosen = np.argpartition(among, len(among) - count)[len(among) - count :]
    else:
        chosen = np.arange(len(among))
    indices = chosen if candidates is None else candidates[chosen]
    return np.sort(indices.astype(np.uint32))


def _above_estimate(sizes: Array, count: int) -> Array | None:
    """Return the indices of all values above a bound estimated from a sample, which include the
    ``count`` largest. None if the estimate is too high.
    """
    step = len(sizes) // _SAMPLE
    if step < 2:
        return None
    sample = sizes[::step]
    share = min(len(sample), int(1.5 * count / len(sizes) * len(sample)) + 16)
    bound = np.partition(sample, len(sample) - share)[len(sample) - share]
    indices = np.flatnonzero(~(sizes < bound))
    return indices if len(indices) >= count else None
