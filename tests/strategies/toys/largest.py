"""A codec: the largest fifth of the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farandole.strategies.codecs.sparse import Sparse

if TYPE_CHECKING:
    from farandole.base.types import Array


class Largest(Sparse):
    name = "largest"
    even = False

    def select(self, values: Array) -> Array:
        sizes = np.abs(values)
        chosen = ~(sizes < np.quantile(sizes, 0.8)) if len(values) else np.zeros(0, bool)
        return np.flatnonzero(chosen).astype(np.uint32)
