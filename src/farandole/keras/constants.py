"""Layers that compute with constants which they make of their weights: Normalization, of Keras 3
and of Keras 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array


def renew(layers: Iterable[Any], kind: Any, array_of: Callable[[Any], Array]) -> bool:
    """The weights of ``layers`` are others: have those of ``kind``, which is Keras's Normalization,
    make their constants anew. Are some of them others now? ``array_of``: the value of one.
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
    """``renew`` the layers of ``model``, and what Keras has compiled, which holds the old
    constants.
    """
    if renew(model._flatten_layers(), kind, array_of):
        for name in ("train", "test", "predict"):
            if getattr(model, f"{name}_function", None) is not None:
                getattr(model, f"make_{name}_function")(force=True)
