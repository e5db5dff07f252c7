from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.job.launch import tools


@pytest.fixture
def jobs() -> Iterator[tools.Marked]:
    with tools.marked() as found:
        yield found
