"""A reader as a tf.data.Dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from farandole.data.parquet.feeds import mapped
from farandole.data.parquet.reader import Reader


def dataset(reader: Reader) -> Any:
    """Return this rank's batches as a dataset. Every iteration is the next epoch. Its attribute
    ``reader`` is the reader.
    """
    columns = reader.data.columns
    example = {column.name: np.empty((0, *column.shape), column.dtype) for column in columns}
    weight = np.empty(0, np.float32) if reader.weighted else None
    signature = mapped(_spec, reader.data.batch(example, weight))
    batches = tf.data.Dataset.from_generator(lambda: reader, output_signature=signature)
    batches = batches.apply(tf.data.experimental.assert_cardinality(len(reader)))
    batches.reader = reader
    return batches


def _spec(_: str, array: Any) -> Any:
    dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
    return tf.TensorSpec((None, *array.shape[1:]), dtype)
