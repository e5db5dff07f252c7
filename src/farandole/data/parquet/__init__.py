"""Parquet files as data to train on: a handle that any process can open, and a rank's batches of
it.
"""

from __future__ import annotations

from farandole.data.parquet.data import ParquetData, from_parquet

__all__ = ["ParquetData", "from_parquet"]
