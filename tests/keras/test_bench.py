"""``farandole bench step`` of this framework, tried out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.samples import DDP
from tests.steps import check_quick_run

pytest.importorskip("keras", reason="keras is not installed")
pytest.importorskip("torch", reason="torch is not installed")


def test_a_quick_run(tmp_path: Path) -> None:
    check_quick_run("keras", DDP, tmp_path)
