"""tf.IndexedSlices, the gradients of embeddings: every rank gets the rows of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole.base.types import ReduceOp
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.tensorflow import functions
from farandole.tensorflow.functions import Names

_HALF = 1 << 32


def is_slices(value: Any) -> bool:
    return isinstance(value, tf.IndexedSlices)


def as_dense(gradients: Sequence[Any]) -> list[Any]:
    """Return ``gradients`` with rows as dense tensors."""
    return [
        tf.convert_to_tensor(gradient) if is_slices(gradient) else gradient
        for gradient in gradients
    ]


def tensor_of(value: Any) -> Any:
    """Return ``value`` as a tensor. Raises TypeError for a value that consists of several
    tensors.
    """
    if isinstance(value, tf.RaggedTensor):
        cure = "its .to_tensor(), or .flat_values and .row_lengths() separately"
    elif isinstance(value, tf.SparseTensor):
        cure = "tf.sparse.to_dense(it), or its .values and .indices separately"
    else:
        return tf.convert_to_tensor(value)
    raise TypeError(
        f"only dense tensors can be exchanged, not a {type(value).__name__}. Pass {cure}"
    )


def allreduce_slices(
    slices: Any,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    compression: Any,
    names: Names,
    process_set: ProcessSet,
) -> Any:
    """Return the sum (or average) of all ranks' slices.

    If several ranks have rows for one index, the index occurs several times, except in averages of
    integers.
    """
    check_slices(op, prescale, postscale)
    small, token = compression.compress(slices.values)
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    values, indices = functions.gather_rows(
        [small, slices.indices], () if shape is None else shape.tolist(), names, process_set
    )
    values = compression.decompress(values, token)
    if op is ReduceOp.AVERAGE:
        values, indices = _average(values, indices, context.engine(process_set).size)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def check_slices(op: ReduceOp, prescale: float, postscale: float) -> None:
    """Raise NotImplementedError for reductions that slices do not support."""
    if op is ReduceOp.ADASUM:
        raise NotImplementedError(
            "The Adasum reduction does not currently support sparse tensors. As a workaround please"
            " pass sparse_as_dense=True to DistributedOptimizer"
        )
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices")
    if prescale != 1.0 or postscale != 1.0:
        raise NotImplementedError("Pre/postscale_factor are not supported with tf.IndexedSlices")


def _average(values: Any, indices: Any, size: int) -> tuple[Any, Any]:
    """Average integers by index, adding them up as ``kernels.average_of_halves`` does.

    The quotient of a sum is not the sum of truncated quotients, and the sum may overflow where the
    average does not.
    """
    dtype = values.dtype
    if not dtype.is_integer:
        return values / tf.cast(size, dtype), indices
    kept, places = tf.unique(indices)
    wide = tf.cast(values, tf.int64)
    high, low = (
        tf.math.unsorted_segment_sum(half, places, tf.size(kept))
        for half in (tf.math.floordiv(wide, _HALF), tf.math.floormod(wide, _HALF))
    )
    count = tf.constant(size, tf.int64)
    quotient = tf.math.floordiv(high, count)
    rest = (high - quotient * count) * _HALF + low
    mean = quotient * _HALF + tf.math.floordiv(rest, count)
    up = tf.not_equal(tf.math.floormod(rest, count), 0) & (mean < 0)  # floordiv rounds down
    return tf.cast(mean + tf.cast(up, tf.int64), dtype), kept
