"""docs/spark.md: its programs run, and print what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import ROOT, blocks, run_page

PAGE = ROOT / "docs" / "spark.md"


@pytest.mark.timeout(300)
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(PAGE, tmp_path)


def test_it_starts_with_a_complete_program_that_is_run() -> None:
    first, second = blocks(PAGE)[:2]
    assert first.words == ["python", "save=digits.py"]
    assert second.words == ["console", "run"]
    assert "digits.py" in second.text
