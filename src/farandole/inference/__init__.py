"""Predictions for many rows: columns of Spark DataFrames, and Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.base import lazy

if TYPE_CHECKING:
    from farandole.inference.parquet import predict_parquet
    from farandole.inference.spark import predict_udf, transform
    from farandole.inference.tuning import tune

__all__ = ["predict_parquet", "predict_udf", "transform", "tune"]

__getattr__, __dir__ = lazy.names(
    __name__,
    {"parquet": ("predict_parquet",), "spark": ("predict_udf", "transform"), "tuning": ("tune",)},
)
