"""The program of docs/numpy.md runs, and prints the documented output."""

from __future__ import annotations

from pathlib import Path

from tests.test_docs import ROOT, run_page


def test_the_page(tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "numpy.md", tmp_path)
