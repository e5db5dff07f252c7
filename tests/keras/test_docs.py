"""docs/keras.md: its programs run, and print what it says."""

from __future__ import annotations

from pathlib import Path

from tests.test_docs import ROOT, blocks, run_page

PAGE = ROOT / "docs" / "keras.md"


def test_the_page(tmp_path: Path) -> None:
    run_page(PAGE, tmp_path)


def test_it_starts_with_a_complete_program_that_is_run() -> None:
    first, second = blocks(PAGE)[:2]
    assert first.words == ["python", "save=train.py"]
    assert "run" in second.words
    assert "train.py" in second.text
