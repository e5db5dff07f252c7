"""Farandole's ``azureml`` refuses to be used where Microsoft's is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat_azureml.tools import SOURCE, python
from tests.kits.messages import mentions


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder of packages with a distribution of Microsoft's."""
    facts = tmp_path / "azureml_telemetry-1.61.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: azureml-telemetry\nVersion: 1.61.0\n"
    )
    return tmp_path


def test_import_names_the_other_distribution(installed: Path) -> None:
    done = python("-c", "import azureml.core", path=(installed,))
    assert done.returncode == 1
    assert mentions(done.stderr, "azureml-telemetry 1.61.0", str(installed))


def test_build_stops_beside_the_other_distribution(installed: Path) -> None:
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
    (installed / "azureml_telemetry-1.61.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: farandole-azureml\nVersion: 0.1.0\n"
    )
    assert python("-c", program, installed).returncode == 0
