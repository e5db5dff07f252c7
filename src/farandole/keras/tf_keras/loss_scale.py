"""Losses scaled by a LossScaleOptimizer of Keras 2.

The optimizer unscales gradients after all ranks have exchanged them. The scale changes, so a
codec's residuals are kept without it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from farandole.tensorflow.sparse import is_slices


def watch() -> None:
    """Set the ``scale`` in an inner optimizer's ``_farandole`` state while the LossScaleOptimizer
    around it computes gradients. Keras does not pass it on.
    """
    for kind in tf_keras.mixed_precision.LossScaleOptimizer.__subclasses__():
        for name in {"_compute_gradients", "compute_gradients", "get_gradients"} & vars(
            kind
        ).keys():
            plain = vars(kind)[name]
            if not hasattr(plain, "tells_farandole"):
                setattr(kind, name, _telling(plain))


def _telling(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def scaling(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        state = optimizer.inner_optimizer.__dict__.get("_farandole")
        if state is None:
            return plain(optimizer, *args, **kwargs)
        state.scale = optimizer.loss_scale
        try:
            return plain(optimizer, *args, **kwargs)
        finally:
            state.scale = None

    scaling.tells_farandole = True  # type: ignore[attr-defined]
    return scaling


def reduced_scaled(
    reduce: Callable[[Sequence[Any]], Sequence[Any]], gradients: Sequence[Any], scale: Any
) -> list[Any]:
    """Return ``reduce(gradients)``, called with gradients without their ``scale``."""
    reduced = reduce([_times(gradient, 1.0 / scale) for gradient in gradients])
    return [
        one if one is None else _cast(_times(one, scale), gradient.dtype)
        for one, gradient in zip(reduced, gradients, strict=True)
    ]


def _times(gradient: Any, factor: Any) -> Any:
    """Multiply in float32, or in float64 for a float64 gradient."""
    if gradient is None:
        return None
    if is_slices(gradient):
        return tf.IndexedSlices(
            _times(gradient.values, factor), gradient.indices, gradient.dense_shape
        )
    wide = gradient if gradient.dtype == tf.float64 else tf.cast(gradient, tf.float32)
    return wide * tf.cast(factor, wide.dtype)


def _cast(gradient: Any, dtype: Any) -> Any:
    if is_slices(gradient):
        return tf.IndexedSlices(
            tf.cast(gradient.values, dtype), gradient.indices, gradient.dense_shape
        )
    return tf.cast(gradient, dtype)
