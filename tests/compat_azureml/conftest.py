"""The package ``azureml`` on the path, and the home of a test's runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from farandole.job.runs.home import RunsHome
from tests.compat_azureml.tools import ROOT, SOURCE
from tests.kits.jobs import runs_home

if str(SOURCE) not in sys.path:
    sys.path.insert(0, str(SOURCE))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunsHome]:
    """Yield the home of a module's runs; processes of runs find ``azureml`` too."""
    with pytest.MonkeyPatch.context() as patch, runs_home(tmp_path_factory.mktemp("runs")) as found:
        patch.setenv("PYTHONPATH", str(SOURCE), prepend=":")
        yield found


@pytest.fixture
def offline(home: RunsHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes of runs find ``horovod`` too, and no rank use several threads."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "compat" / "src"), prepend=":")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
