"""The programs of docs/tensorflow.md run, and print the documented output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import ROOT, run_page

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


def test_the_page(tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "tensorflow.md", tmp_path)
