"""The script for spark-submit learns, ends with one model on all ranks, and resumes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

ROOT = Path(__file__).parent.parent.parent


def train(command: list[str], *arguments: str) -> str:
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "spark_mnist.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_spark_mnist_learns_and_resumes(tmp_path: Path) -> None:
    options = ["--num-proc", "2", "--checkpoint", str(tmp_path / "mnist.pt")]
    first = train([sys.executable], "--master", "local[2]", "--epochs", "2", *options)
    assert "all equal: True" in first
    assert re.findall(r"^Epoch (\d) ended", first, re.M) == ["0", "1"]
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    second = train(submit, "--epochs", "5", *options)
    assert "resuming after epoch 2" in second
    assert re.findall(r"^Epoch (\d) ended", second, re.M) == ["2", "3", "4"]
    found = re.search(r"^test accuracy ([\d.]+)% on 2 ranks, all equal: True$", second, re.M)
    assert found, second
    assert float(found[1]) > 90.0
    assert [path.name for path in tmp_path.iterdir()] == ["mnist.pt"]
