from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tests.spark.conftest  # noqa: F401  # its settings of JVMs


@pytest.fixture(scope="package")
def spark() -> Iterator[Any]:
    """Two executors with a core each, and small Arrow batches; one session for all tests of this folder."""
    from tests.spark.tools import session

    conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100", "spark.sql.shuffle.partitions": "2"}
    with session("local-cluster[2,1,1024]", **conf) as found:
        yield found
