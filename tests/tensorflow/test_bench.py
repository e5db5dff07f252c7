"""``farandole bench step`` of this framework, tried out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.samples import MIRRORED
from tests.steps import check_quick_run

pytest.importorskip("tensorflow", reason="tensorflow is not installed")
pytest.importorskip("tf_keras", reason="tf_keras is not installed")


def test_a_quick_run(tmp_path: Path) -> None:
    check_quick_run("tensorflow", MIRRORED, tmp_path)
