"""Predictions for many rows: columns of Spark DataFrames, and Parquet files."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farandole.inference.parquet import predict_parquet
    from farandole.inference.spark import predict_udf, transform
    from farandole.inference.tuning import tune

__all__ = ["predict_parquet", "predict_udf", "transform", "tune"]

# Imported when they are used.
_LATER = {"parquet": ("predict_parquet",), "spark": ("predict_udf", "transform"), "tuning": ("tune",)}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(importlib.import_module(f"farandole.inference.{module}"), name)
    raise AttributeError(f"module 'farandole.inference' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
