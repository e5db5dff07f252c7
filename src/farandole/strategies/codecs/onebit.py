"""``onebit``: the sign of each element, and per block of 512 the means of the positive and of the
negative elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farandole.strategies.codecs.momentum import ReplacedMomentum
from farandole.strategies.codecs.quantized import PushQuantized, in_blocks

if TYPE_CHECKING:
    from farandole.base.types import Array


class OneBit(ReplacedMomentum, PushQuantized):
    """1-bit SGD with error feedback (Seide et al. 2014, "1-Bit Stochastic Gradient Descent")."""

    name, block, gamma = "onebit", 512, 0.5

    def __init__(self) -> None:
        super().__init__()

    def nbytes(self, count: int) -> int:
        return -(-count // self.block) * (self.block // 8 + 8)

    def encode(self, values: Array, generator: np.random.Generator | None) -> Array:
        blocks = in_blocks(values, self.block)
        positive = blocks >= 0
        lengths = np.full(len(blocks), self.block)
        lengths[-1:] -= blocks.size - len(values)
        counts = np.count_nonzero(positive, axis=1)
        counts[-1:] -= blocks.size - len(values)
        means = np.empty((len(blocks), 2), np.float32)
        means[:, 0] = _means(np.maximum(blocks, 0), np.maximum(counts, 1))
        means[:, 1] = _means(np.minimum(blocks, 0), np.maximum(lengths - counts, 1))
        return np.concatenate([np.packbits(positive), means.reshape(-1).view(np.uint8)])

    def decode(self, payload: Array, out: Array) -> None:
        rows = len(payload) // (self.block // 8 + 8)
        bits = np.unpackbits(payload[: rows * self.block // 8]).reshape(rows, self.block)
        means = payload[rows * self.block // 8 :].copy().view(np.float32).reshape(rows, 2)
        apart = means[:, :1] - means[:, 1:]
        if np.isfinite(apart).all():
            numbers = bits * apart  # several times as fast as np.where
            numbers += means[:, 1:]
        else:
            numbers = np.where(bits, means[:, :1], means[:, 1:])
        out[:] = numbers.reshape(-1)[: len(out)]


def _means(blocks: Array, counts: Array) -> Array:
    """Return the sum of each row divided by its count. A sum may overflow float32 where the mean
    does not.
    """
    means: Array = blocks.sum(axis=1) / counts
    large = ~np.isfinite(means)
    if large.any():
        means[large] = blocks[large].sum(axis=1, dtype=np.float64) / counts[large]
    return means
