"""docs/api/tensorflow.md equals the docstrings."""

from __future__ import annotations

import pytest

from tests.test_api_pages import check

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


def test_the_page_is_current_and_explains_every_argument() -> None:
    check("tensorflow")
