from __future__ import annotations

from collections.abc import Iterator
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
