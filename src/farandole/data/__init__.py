"""Each rank's training data: samplers, sources and asynchronous loading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.base import lazy
from farandole.data.loader import AsyncDataLoaderMixin, BaseDataLoader
from farandole.data.permutation import Permutation
from farandole.data.sampler import DistributedSampler, ElasticSampler

if TYPE_CHECKING:
    from farandole.data.parquet import ParquetData, from_parquet
    from farandole.data.spark import SparkData, from_spark
    from farandole.data.store import DBFSLocalStore, FilesystemStore, HDFSStore, LocalStore, Store

__all__ = [
    "AsyncDataLoaderMixin",
    "BaseDataLoader",
    "DBFSLocalStore",
    "DistributedSampler",
    "ElasticSampler",
    "FilesystemStore",
    "HDFSStore",
    "LocalStore",
    "ParquetData",
    "Permutation",
    "SparkData",
    "Store",
    "from_parquet",
    "from_spark",
]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "parquet": ("ParquetData", "from_parquet"),
        "spark": ("SparkData", "from_spark"),
        "store": ("DBFSLocalStore", "FilesystemStore", "HDFSStore", "LocalStore", "Store"),
    },
)
