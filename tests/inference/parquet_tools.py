"""Read the output of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def read(path: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(path).to_pylist())
