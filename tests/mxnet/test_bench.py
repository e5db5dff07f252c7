"""``farandole bench step`` of this framework, tried out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.steps import check_quick_run

pytest.importorskip("mxnet", reason="mxnet is not installed")


def test_a_quick_run(tmp_path: Path) -> None:
    check_quick_run("mxnet", "", tmp_path)
