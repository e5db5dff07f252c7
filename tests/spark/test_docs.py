"""docs/spark.md: its programs run, and print what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import ROOT, run_page


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / "docs" / "spark.md", tmp_path)
