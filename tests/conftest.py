"""What every test shares: nothing may be left behind, and processes of the pool end with the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import pool


@pytest.fixture(scope="session", autouse=True)
def _end_the_pool() -> Iterator[None]:
    yield
    pool.end_all()
