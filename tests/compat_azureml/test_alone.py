"""Farandole's ``azureml`` refuses to be used where Microsoft's is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat_azureml.tools import SOURCE, python
from tests.kits.messages import mentions


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder of packages with a distribution of Microsoft's."""
    (tmp_path / "azureml_telemetry-1.61.0.dist-info").mkdir()
    return tmp_path


def test_import_names_the_other_distribution(installed: Path) -> None:
    done = python("-c", "import azureml.core", path=(installed,))
    assert done.returncode == 1
    assert mentions(done.stderr, "azureml-telemetry 1.61.0", str(installed))


def test_build_stops_next_to_the_other_distribution(installed: Path) -> None:
    hook = SOURCE.parent / "hatch_build.py"
    program = (
        "import runpy, sys, sysconfig\n"
        "sysconfig.get_path = lambda name: sys.argv[1]\n"
        f"Hook = runpy.run_path({str(hook)!r})['AloneHook']\n"
        f"made = Hook.__new__(Hook); made._BuildHookInterface__root = {str(SOURCE.parent)!r}\n"
        "made.initialize('standard', {})\n"
    )
    refused = python("-c", program, installed)
    assert mentions(refused.stderr, "azureml-telemetry 1.61.0")
    (installed / "azureml_telemetry-1.61.0.dist-info").rename(
        installed / "farandole_azureml-0.1.0.dist-info"
    )
    assert python("-c", program, installed).returncode == 0


@pytest.mark.slow
def test_distribution_can_be_built_and_installed(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--no-index", "--target", tmp_path, SOURCE.parent],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "azureml" / "core" / "run.py").is_file()
    assert list(tmp_path.glob("farandole_azureml-*.dist-info"))
