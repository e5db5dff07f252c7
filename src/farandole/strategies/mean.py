"""The mean over the ranks of one optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from farandole.strategies.list_reducer import GradientListReducer
from farandole.strategies.options import GradientOptions

if TYPE_CHECKING:
    from farandole.base.types import Array


class MeanReducer:
    """Averages arrays in place. Joined ranks contribute zeros and do not count.

    ``options``: for a sum. ``scope``: a prefix of names in a codec's state.
    """

    def __init__(self, name: str, options: GradientOptions, scope: str = "") -> None:
        self._reducer = GradientListReducer(name, options, scope=scope)

    def __call__(self, arrays: Sequence[Array], names: Sequence[str] | None = None) -> None:
        """Average ``arrays``. ``names``: for messages. Collective."""
        present = np.ones(1, dtype=np.int64)
        self._reducer(
            [*arrays, present], None if names is None else [*names, "ranks"], in_place=True
        )
        for array in arrays:
            np.divide(array, present[0], out=array)

    def any_of(self, true: bool) -> bool:
        """Return whether ``true`` holds on some rank. Joined ranks do not count. Collective."""
        (total,) = self._reducer([np.array([true], dtype=np.int64)])
        return bool(total[0])

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self([np.zeros(1)])
