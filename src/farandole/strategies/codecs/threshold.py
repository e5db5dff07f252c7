"""``threshold:t``: only values of magnitude t or more. The others accumulate until they reach t."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farandole.strategies.codecs.base import number
from farandole.strategies.codecs.sparse import Sparse

if TYPE_CHECKING:
    from farandole.base.types import Array


class Threshold(Sparse):
    """Threshold quantization (Strom 2015). The number of bytes depends on the gradients; zeros cost
    nothing.
    """

    name, even, gamma = "threshold", False, 0.5

    def __init__(self, bound: str | float) -> None:
        super().__init__(str(bound))
        self._bound = number(self.name, bound, float, "the smallest absolute value to send", 0)

    def select(self, values: Array) -> Array:
        return np.flatnonzero(~(np.abs(values) < self._bound)).astype(np.uint32)  # includes NaN
