"""Parquet files as training data: a handle that any process can open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from farandole.data.parquet.source import ParquetSource


class ParquetData(ParquetSource):
    """Data in Parquet files, made by ``from_parquet`` and ``from_spark``. The handle may be
    pickled, and captured by a training function.

    ``numpy``, ``torch``, ``keras`` and ``tensorflow`` return this rank's batches, for any
    framework.
    """

    def numpy(self, batch_size: int, **options: Any) -> Any:
        """Return a ``Reader`` of this rank's batches as numpy arrays, which JAX takes as they
        are.
        """
        from farandole.data.parquet.reader import Reader

        return Reader(self, batch_size, **options)

    def torch(self, batch_size: int, **options: Any) -> Any:
        """Return a ``torch.utils.data.IterableDataset`` of this rank's batches.

        Iterate over it, or pass it to a DataLoader with ``batch_size=None``. ``options``: see
        ``Reader``.
        """
        from farandole.data.parquet.feeds.torch import TorchBatches

        return TorchBatches(self.numpy(batch_size, **options))

    def keras(self, batch_size: int, **options: Any) -> Any:
        """Return a ``keras.utils.PyDataset`` of this rank's batches, for ``fit`` on any backend.

        ``options``: see ``Reader``.
        """
        from farandole.data.parquet.feeds.keras import KerasBatches

        return KerasBatches(self.numpy(batch_size, **options))

    def tensorflow(self, batch_size: int, **options: Any) -> Any:
        """Return a ``tf.data.Dataset`` of this rank's batches. ``options``: see ``Reader``."""
        from farandole.data.parquet.feeds.tensorflow import dataset

        return dataset(self.numpy(batch_size, **options))


def from_parquet(path: str | os.PathLike[str] | Sequence[str], **options: Any) -> ParquetData:
    """Return Parquet files as training data.

    ``path``: a file, a folder (which may have key=value folders), a list of these, or a URL: s3://,
    gs://, abfs://, hdfs://, dbfs:/, or any other that fsspec knows. ``storage_options``: arguments
    for fsspec. ``columns``: names of the columns to read (default: all); or ``features``,
    ``labels`` and ``weight``: names of columns, for batches ``(inputs, labels)`` or ``(inputs,
    labels, weight)``. ``shapes={name: shape}``: the shape of one row's list, vector, image or bytes
    (default: the type's own, or the first row's). ``dtypes={name: dtype}``: the array's dtype
    (default: the file's own). ``fill={name: value}``: the value that replaces nulls and pads lists
    shorter than their shape. ``decode={name: function}``: converts the bytes of one row (such as an
    encoded image) to an array; called from threads. ``objects=True``: columns without such options
    that are not single numbers, and numbers with nulls, become arrays of Python objects, to be
    converted by a function.

    Raises DataError for unusable files, columns and types, and for nulls reported by the footers.
    """
    data = ParquetData(path, **options)
    _ = data.scan  # now, so that errors are raised before training starts
    return data
