from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.spark.conftest  # noqa: F401  # its settings of JVMs


@pytest.fixture(scope="package")
def spark() -> Iterator[Any]:
    """Two executors with a core each, and small Arrow batches; one session for all tests of this
    folder.
    """
    from pyspark.sql import SparkSession

    from tests.spark.tools import session

    if (other := SparkSession.getActiveSession()) is not None:
        other.stop()  # a test here kills executors, and must have its own
    conf = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        "spark.sql.shuffle.partitions": "2",
    }
    with session("local-cluster[2,1,1024]", **conf) as found:
        yield found


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """1000 rows in two files of a folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "in.parquet"
    for year, rows in ((2024, range(600)), (2025, range(600, 1000))):
        (folder / f"year={year}").mkdir(parents=True)
        made = pa.table(
            {
                "id": list(rows),
                "x": [[float(row), 1.0] for row in rows],
                "name": [f"n{row}" for row in rows],
            }
        )
        pq.write_table(made, folder / f"year={year}" / "a.parquet", row_group_size=130)
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Six rows of bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "small" / "in.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"x": [bytes([row]) for row in range(6)]}), path)
    return path
