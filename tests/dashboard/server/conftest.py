"""A server of the page, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from farandole.dashboard.server.app import make_app
from farandole.dashboard.server.security import Access
from farandole.job.runs.home import RunsHome
from tests.kits.jobs import runs_home

PORT = 8000


@pytest.fixture
def home(tmp_path: Path) -> Iterator[RunsHome]:
    with runs_home(tmp_path) as found:
        yield found


@pytest.fixture
def access() -> Access:
    return Access(PORT)


@pytest.fixture
def page(home: RunsHome, access: Access) -> Iterator[TestClient]:
    """Yield a client that has the token, as a program has it."""
    headers = {"authorization": f"Bearer {access.token}"}
    app = make_app(home, access)
    with TestClient(app, f"http://127.0.0.1:{PORT}", headers=headers) as client:
        yield client


@pytest.fixture
def browser(home: RunsHome, access: Access) -> Iterator[TestClient]:
    """Yield a client without a token."""
    with TestClient(
        make_app(home, access), f"http://127.0.0.1:{PORT}", follow_redirects=False
    ) as client:
        yield client
