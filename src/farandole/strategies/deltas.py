"""Changes of a rank's weights since its last exchange, and their staleness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array


class Staleness:
    """What one rank has seen: pushes, how many of them came too late to count, and how often others
    had changed what it pushed to since it set out: the mean and the largest number.
    """

    def __init__(self) -> None:
        self.pushes = self.dropped = self.maximum = self._sum = 0

    @property
    def mean(self) -> float:
        return self._sum / max(self.pushes, 1)

    def see(self, staleness: int, dropped: bool = False) -> None:
        self.pushes, self.dropped = self.pushes + 1, self.dropped + dropped
        self.maximum, self._sum = max(self.maximum, staleness), self._sum + staleness


def deltas(weights: Sequence[Array], anchors: Sequence[Array]) -> list[Array]:
    """Return ``weights - anchors``, as new arrays."""
    return [
        np.subtract(weight, anchor, out=np.empty_like(weight, order="C"))
        for weight, anchor in zip(weights, anchors, strict=True)
    ]


def restart_from(
    weights: Sequence[Array], anchors: Sequence[Array], values: Sequence[Array]
) -> None:
    """Set weights and anchors to ``values``."""
    for weight, anchor, value in zip(weights, anchors, values, strict=True):
        np.copyto(weight, value)
        np.copyto(anchor, value)
