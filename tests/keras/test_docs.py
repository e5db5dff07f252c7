"""The programs of docs/keras.md run, and print the documented output."""

from __future__ import annotations

from pathlib import Path

from tests.test_docs import ROOT, run_page


def test_the_page(tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "keras.md", tmp_path)
