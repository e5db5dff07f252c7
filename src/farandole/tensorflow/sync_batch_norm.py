"""The arithmetic of batch normalization over the batches of all ranks, for layers of Keras 2
and 3.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from farandole.base.types import ReduceOp
from farandole.job.context import ProcessSet
from farandole.tensorflow.differentiable import allreduce
from farandole.tensorflow.gradients import alone


class Synchronized:
    """The methods that the layer adds to its base class, of Keras 3 or 2."""

    _process_set: ProcessSet

    def _moments(self, inputs: Any, *rest: Any, **more: Any) -> Any:
        """Return the mean and (biased) variance per channel of all ranks' ``inputs``, restricted to
        unmasked positions.

        Keras 3 calls this with (inputs, mask), Keras 2 with (inputs, axes, keep_dims=...,
        mask=...).
        """
        base: Any = super()
        layer: Any = self
        if alone(self._process_set):
            return base._moments(inputs, *rest, **more)
        mask = more["mask"] if "mask" in more else rest[0]
        channel = (
            layer.axis[0]
            if isinstance(layer.axis, (list, tuple))
            else layer.axis % inputs.shape.rank
        )
        axes = [axis for axis in range(inputs.shape.rank) if axis != channel]
        wide = tf.cast(inputs, tf.float64)
        channels = inputs.shape[channel]
        if mask is None:
            count = tf.cast(tf.size(inputs) // channels, tf.float64)
            sums = [tf.reduce_sum(wide, axes), tf.reduce_sum(wide * wide, axes)]
        else:
            shown = tf.broadcast_to(tf.cast(mask, tf.float64)[..., None], tf.shape(inputs))
            count = tf.reduce_sum(shown) / channels
            sums = [tf.reduce_sum(shown * wide, axes), tf.reduce_sum(shown * wide * wide, axes)]
        mine = tf.concat([count[None], *sums], axis=0)
        # without scopes: names of scopes and layers depend on other objects of the process
        total = allreduce(
            mine,
            op=ReduceOp.SUM,
            name="SyncBatchNormalization",
            process_set=self._process_set,
            ignore_name_scope=True,
        )
        count = tf.maximum(total[0], 1.0)
        mean = total[1 : channels + 1] / count
        variance = tf.maximum(total[channels + 1 :] / count - mean * mean, 0.0)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def check_not_fused(fused: bool | None) -> None:
    if fused in (True, None):
        raise ValueError(
            f"SyncBatchNormalization does not support fused=True. (got fused={fused}; omit it)"
        )
