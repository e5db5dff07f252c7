"""Parquet files as training data: a handle that any process can open, and a rank's batches."""

from __future__ import annotations

from farandole.data.parquet.data import ParquetData, from_parquet

__all__ = ["ParquetData", "from_parquet"]
