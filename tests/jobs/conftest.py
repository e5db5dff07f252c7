"""The home of a test's runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.job.runs.home import RunsHome
from tests.kits.jobs import runs_home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[RunsHome]:
    with runs_home(tmp_path) as found:
        yield found
