from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two executors with a core each, each in a JVM of its own."""
    from tests.spark.tools import session

    with session("local-cluster[2,1,1024]") as found:
        yield found
