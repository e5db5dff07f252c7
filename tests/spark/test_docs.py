"""The programs of docs/spark.md run, and print the documented output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import ROOT, run_page


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / "docs" / "spark.md", tmp_path)
