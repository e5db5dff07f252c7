from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.spark.conftest  # noqa: F401  what it sets makes JVMs start sooner
from tests.keras.conftest import _end_the_pools as _end_the_pools


@pytest.fixture(scope="package")
def spark() -> Iterator[Any]:
    """A session of two task slots, which ends before other folders start theirs."""
    from tests.spark.tools import session

    with session("local[2]", **{"spark.sql.shuffle.partitions": "2"}) as found:
        yield found


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, which must be empty afterwards."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder
