"""Parquet files as data to train on: a handle that any process can open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from farandole.data.parquet.source import ParquetSource


class ParquetData(ParquetSource):
    """Data in Parquet files. Made by ``from_parquet`` and ``from_spark``; may be pickled, and
    captured by a training function.

    ``numpy``, ``torch``, ``keras`` and ``tensorflow`` give this rank's batches, for any framework.
    """

    def numpy(self, batch_size: int, **options: Any) -> Any:
        """A ``Reader``: this rank's batches as numpy arrays, which JAX takes as they are."""
        from farandole.data.parquet.reader import Reader

        return Reader(self, batch_size, **options)

    def torch(self, batch_size: int, **options: Any) -> Any:
        """A ``torch.utils.data.IterableDataset`` of this rank's batches: iterate over it, or give
        it to a DataLoader with ``batch_size=None``. ``options``: see ``Reader``.
        """
        from farandole.data.parquet.feeds.torch import TorchBatches

        return TorchBatches(self.numpy(batch_size, **options))

    def keras(self, batch_size: int, **options: Any) -> Any:
        """A ``keras.utils.PyDataset`` of this rank's batches, for ``fit`` on any backend. Options:
        see ``Reader``.
        """
        from farandole.data.parquet.feeds.keras import KerasBatches

        return KerasBatches(self.numpy(batch_size, **options))

    def tensorflow(self, batch_size: int, **options: Any) -> Any:
        """A ``tf.data.Dataset`` of this rank's batches. ``options``: see ``Reader``."""
        from farandole.data.parquet.feeds.tensorflow import dataset

        return dataset(self.numpy(batch_size, **options))


def from_parquet(path: str | os.PathLike[str] | Sequence[str], **options: Any) -> ParquetData:
    """Parquet files as data to train on.

    ``path``: a file, a folder (also one with key=value folders in it), a list of these, or a URL:
    s3://, gs://, abfs://, hdfs://, dbfs:/, or any that fsspec knows. ``storage_options``: arguments
    for fsspec. ``columns``: those that are read (default: all); or ``features``, ``labels`` and
    ``weight``: names of columns, for batches ``(inputs, labels)`` or ``(inputs, labels, weight)``.
    ``shapes={name: shape}``: of a row's list, vector, image or bytes; default: the type's own, or
    the first row's. ``dtypes={name: dtype}``: default: the file's own. ``fill={name: value}``: for
    null, and for the end of lists that are shorter than their shape. ``decode={name: function}``:
    makes an array of the bytes of one row (an image), in threads.

    Raises DataError for files, columns and types that cannot be used, and for nulls that footers
    tell of.
    """
    data = ParquetData(path, **options)
    _ = data.scan  # here, so that errors are raised before training starts
    return data
