"""``int8``: a byte per element and a scale per block of 256. Rounding is stochastic, so errors
average out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farandole.strategies.codecs.quantized import PushQuantized, in_blocks

if TYPE_CHECKING:
    from farandole.base.types import Array

_MOST = np.float32(127)
# Blocks of smaller values count as zeros: float32 cannot represent the inverse of their scale.
_TINY = 1e-36


class Int8(PushQuantized):
    """Stochastic quantization after Alistarh et al. 2017 (QSGD). It is unbiased, so no residual is
    kept.
    """

    name, feedback, seeded, block, gamma = "int8", False, True, 256, 1.0

    def __init__(self) -> None:
        super().__init__()

    def nbytes(self, count: int) -> int:
        return -(-count // self.block) * (self.block + 4)

    def encode(self, values: Array, generator: np.random.Generator | None) -> Array:
        assert generator is not None
        blocks = in_blocks(values.astype(np.float32, copy=False), self.block)
        largest = (
            np.maximum(blocks.max(axis=1), -blocks.min(axis=1)) if len(blocks) else blocks[:, 0]
        )
        largest[largest < _TINY] = 0
        factor = np.divide(_MOST, largest, out=np.zeros_like(largest), where=largest != 0)
        codes = generator.random(blocks.shape, np.float32)
        codes += blocks * factor[:, None]
        np.floor(codes, out=codes)
        np.minimum(codes, _MOST, out=codes)
        return np.concatenate(
            [codes.astype(np.int8).reshape(-1).view(np.uint8), (largest / _MOST).view(np.uint8)]
        )

    def decode(self, payload: Array, out: Array) -> None:
        rows = len(payload) // (self.block + 4)
        codes = payload[: rows * self.block].view(np.int8).reshape(rows, self.block)
        scales = payload[rows * self.block :].copy().view(np.float32)
        out[:] = (codes * scales[:, None]).reshape(-1)[: len(out)]
