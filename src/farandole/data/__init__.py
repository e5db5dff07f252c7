"""Which samples each rank sees, where they come from, and loading them ahead of time."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farandole.data.loader import AsyncDataLoaderMixin, BaseDataLoader
from farandole.data.permutation import Permutation
from farandole.data.sampler import DistributedSampler, ElasticSampler

if TYPE_CHECKING:
    from farandole.data.parquet import ParquetData, from_parquet

__all__ = [
    "AsyncDataLoaderMixin", "BaseDataLoader", "DistributedSampler", "ElasticSampler", "ParquetData", "Permutation",
    "from_parquet",
]  # fmt: skip

_LATER = {"ParquetData": "parquet", "from_parquet": "parquet"}  # imported when they are used: few programs do


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"farandole.data.{_LATER[name]}"), name)
    raise AttributeError(f"module 'farandole.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
