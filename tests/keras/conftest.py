from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.keras import backends


@pytest.fixture(params=backends.BACKENDS, scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """Tests of one backend after those of another, so that not all have processes at once."""
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def _end_the_pools() -> Iterator[None]:
    yield
    backends.end_all()
