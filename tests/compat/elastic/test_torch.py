"""Horovod's elastic histories with its PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.elastic.scenarios import SCENARIOS, Elastic
from tests.compat.tools import PROGRAMS

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_an_elastic_history(scenario: Callable[[Elastic], None], tmp_path: Path) -> None:
    scenario(Elastic(PROGRAMS / "elastic_torch.py", tmp_path))
