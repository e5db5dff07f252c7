"""SyncBatchNormalization: batch normalization as if one process had the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from farandole import context
from farandole.context import ProcessSet
from farandole.frontend.ops import WORLD
from farandole.tensorflow.differentiable import allreduce
from farandole.types import ReduceOp


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Takes the place of ``tf.keras.layers.BatchNormalization``, with its arguments. Ranks may have batches of
    different sizes, or none. Statistics are computed in double precision.

    Models with it cannot be compiled by XLA: Keras's ``jit_compile="auto"`` does not.
    """

    supports_jit = False

    def __init__(self, fused: bool | None = False, process_set: ProcessSet = WORLD, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError(f"SyncBatchNormalization does not support fused=True. (got fused={fused}; leave it out)")
        super().__init__(**kwargs)
        self.supports_jit = False
        self._process_set = process_set

    def _moments(self, inputs: Any, mask: Any = None, keep_dims: bool = False) -> Any:
        """Mean and (biased) variance per channel of all ranks' ``inputs``; where there is a mask, of what it shows."""
        if context.engine(self._process_set).size == 1:
            return super()._moments(inputs, mask)
        axes = [axis for axis in range(inputs.shape.rank) if axis != self.axis % inputs.shape.rank]
        wide = tf.cast(inputs, tf.float64)
        channels = inputs.shape[self.axis]
        if mask is None:
            count = tf.cast(tf.size(inputs) // channels, tf.float64)
            sums = [tf.reduce_sum(wide, axes), tf.reduce_sum(wide * wide, axes)]
        else:
            shown = tf.broadcast_to(tf.cast(mask, tf.float64)[..., None], tf.shape(inputs))
            count = tf.reduce_sum(shown) / channels
            sums = [tf.reduce_sum(shown * wide, axes), tf.reduce_sum(shown * wide * wide, axes)]
        mine = tf.concat([count[None], *sums], axis=0)
        total = allreduce(mine, op=ReduceOp.SUM, name=f"{self.name}_moments", process_set=self._process_set)
        count = tf.maximum(total[0], 1.0)
        mean = total[1 : channels + 1] / count
        variance = tf.maximum(total[channels + 1 :] / count - mean * mean, 0.0)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        return dict(super().get_config())
