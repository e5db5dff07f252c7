"""examples/spark_pipeline.py learns to read digits, with either framework, and leaves its predictions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.keras.backends import QUICK

pytestmark = pytest.mark.slow
pytest.importorskip("sklearn", reason="scikit-learn is not installed")
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "spark_pipeline.py"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_a_pipeline_reads_digits(framework: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--framework", framework, "--master", "local[2]", "--work", str(tmp_path)]
    env = {**os.environ, "KERAS_BACKEND": QUICK}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^accuracy ([\d.]+)% of (\d+) predictions in ", done.stdout, re.M)
    assert found, done.stdout
    assert float(found[1]) > 90
    assert 250 < int(found[2]) < 500
    assert sorted(path.name for path in tmp_path.iterdir()) == ["intermediate_train_data", "predictions", "runs"]
    assert list((tmp_path / "intermediate_train_data").iterdir()) == []
