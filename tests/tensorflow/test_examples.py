"""The example learns on two processes, and rank 0 saves what it learned."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

SCRIPT = Path(__file__).parent.parent.parent / "examples" / "tensorflow2_mnist.py"


def train(*arguments: str | Path) -> list[float]:
    """The test accuracy after each epoch, in per cent."""
    run = [sys.executable, "-m", "farandole.cli", "run", "-np", "2"]
    command = [*run, sys.executable, "-W", "ignore", str(SCRIPT), *map(str, arguments)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [
        float(each)
        for each in re.findall(
            r"epoch \d+: loss [\d.]+, test accuracy ([\d.]+)%$", done.stdout, re.M
        )
    ]


def test_digits_are_learned(tmp_path: Path) -> None:
    found = train("--epochs", "2", "--images", "3000", "--checkpoints", tmp_path)
    assert len(found) == 2  # rank 0 alone speaks
    assert found[-1] > 90.0
    assert sorted(path.name for path in tmp_path.glob("*.index")) == [
        "model-1.index",
        "model-2.index",
    ]
