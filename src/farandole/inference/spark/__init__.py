"""Predictions as columns of Spark DataFrames."""

from __future__ import annotations

from farandole.inference.spark.udf import predict_udf, transform

__all__ = ["predict_udf", "transform"]
