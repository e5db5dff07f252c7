"""Which samples each rank sees, where they come from, and loading them ahead of time."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farandole.data.loader import AsyncDataLoaderMixin, BaseDataLoader
from farandole.data.permutation import Permutation
from farandole.data.sampler import DistributedSampler, ElasticSampler

if TYPE_CHECKING:
    from farandole.data.parquet import ParquetData, from_parquet
    from farandole.data.spark import SparkData, from_spark
    from farandole.data.store import DBFSLocalStore, FilesystemStore, HDFSStore, LocalStore, Store

__all__ = [
    "AsyncDataLoaderMixin", "BaseDataLoader", "DBFSLocalStore", "DistributedSampler", "ElasticSampler",
    "FilesystemStore", "HDFSStore", "LocalStore", "ParquetData", "Permutation", "SparkData", "Store", "from_parquet",
    "from_spark",
]  # fmt: skip

# Imported when they are used: few programs do.
_LATER = {
    "parquet": ("ParquetData", "from_parquet"),
    "spark": ("SparkData", "from_spark"),
    "store": ("DBFSLocalStore", "FilesystemStore", "HDFSStore", "LocalStore", "Store"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(importlib.import_module(f"farandole.data.{module}"), name)
    raise AttributeError(f"module 'farandole.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
