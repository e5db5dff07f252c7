"""Layers that cache constants computed from their weights: Normalization, in Keras 2 and 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array


def renew(layers: Iterable[Any], kind: Any, array_of: Callable[[Any], Array]) -> bool:
    """Recompute the constants of Normalization layers after their weights changed.

    ``kind``: Keras's Normalization class. ``array_of``: returns a variable's value. Returns whether
    any constant changed.
    """
    found = [
        layer
        for layer in layers
        if isinstance(layer, kind) and layer.built and layer.input_mean is None
    ]
    renewed = False
    for layer in found:
        before = [np.array(array_of(constant)) for constant in (layer.mean, layer.variance)]
        layer.finalize_state()
        after = [array_of(constant) for constant in (layer.mean, layer.variance)]
        renewed |= not all(map(np.array_equal, before, after))
    return renewed


def renew_in(model: Any, kind: Any, array_of: Callable[[Any], Array]) -> None:
    """Recompute the constants of ``model``'s layers, and drop compiled functions that hold the old
    ones.
    """
    if renew(model._flatten_layers(), kind, array_of):
        make_functions(model)


def make_functions(model: Any) -> None:
    """Rebuild the model's compiled functions, which hold the old constants of its layers."""
    for name in ("train", "test", "predict"):
        if getattr(model, f"{name}_function", None) is not None:
            getattr(model, f"make_{name}_function")(force=True)
