"""Values of columns as Spark and users write them to Parquet."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

VECTOR = pa.struct(
    {
        "type": pa.int8(),
        "size": pa.int32(),
        "indices": pa.list_(pa.int32()),
        "values": pa.list_(pa.float64()),
    }
)
DENSE = {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0, 3.0]}
SPARSE = {"type": 0, "size": 3, "indices": [2, 0], "values": [5.0, 4.0]}


def image(height: int = 2, channels: int = 1, data: bytes | None = None) -> dict[str, Any]:
    found = bytes(range(height * 2 * channels)) if data is None else data
    return {
        "origin": "a",
        "height": height,
        "width": 2,
        "nChannels": channels,
        "mode": 0,
        "data": found,
    }


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def load(value: bytes) -> Any:
    return np.load(io.BytesIO(value))


def written(folder: Path, column: Any, name: str = "part.parquet", **options: Any) -> str:
    pq.write_table(pa.table({"x": column}), folder / name, **options)
    return str(folder)
