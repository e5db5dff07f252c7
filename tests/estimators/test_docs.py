"""The programs of docs/estimators.md run, and print the documented output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import ROOT, run_page

pytestmark = pytest.mark.slow


def test_the_page(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    run_page(ROOT / "docs" / "estimators.md", tmp_path)
