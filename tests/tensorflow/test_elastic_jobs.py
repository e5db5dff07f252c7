"""Elastic jobs of TensorFlow's own loop and of Keras' fit: Horovod's histories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.elastic.scenarios import Elastic, hosts_added_and_removed, single_rank_failure
from tests.compat.tools import PROGRAMS

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("program", "scenario"),
    [
        ("elastic_tensorflow2.py", single_rank_failure),
        ("elastic_keras.py", hosts_added_and_removed),
        ("elastic_keras.py", single_rank_failure),
    ],
)
def test_an_elastic_history(
    program: str, scenario: Callable[[Elastic], None], tmp_path: Path
) -> None:
    scenario(Elastic(PROGRAMS / program, tmp_path))
