"""Predictions for Parquet files, without Spark."""

from farandole.inference.parquet.predict import Summary, predict_parquet

__all__ = ["Summary", "predict_parquet"]
