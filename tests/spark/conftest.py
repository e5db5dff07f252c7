from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

# tools.MARK, which the first JVM passes on to all others
os.environ.setdefault("FARANDOLE_TEST", uuid.uuid4().hex)
# Tests start dozens of JVMs, each for seconds: what they would compile well, they would hardly use.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two executors with a core each, each in a separate JVM."""
    from tests.spark.tools import session

    with session("local-cluster[2,1,1024]") as found:
        yield found
