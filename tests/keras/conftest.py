from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.keras import backends


@pytest.fixture(params=backends.BACKENDS, scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """The backend of a test. Tests of one backend run together, so that only one pool has
    processes.
    """
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def _end_the_pools() -> Iterator[None]:
    yield
    backends.end_all()
