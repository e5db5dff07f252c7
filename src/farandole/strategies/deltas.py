"""Deltas: the changes of a rank's weights since its last exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array


def deltas(weights: Sequence[Array], anchors: Sequence[Array]) -> list[Array]:
    """Return ``weights - anchors`` as new arrays."""
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
