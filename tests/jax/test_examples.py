"""The examples learn, on one process and on two, and end with the same model on all."""

from __future__ import annotations

import gzip
import importlib.util
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.kits.messages import mentions

pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("optax", reason="optax is not installed")

ROOT = Path(__file__).parent.parent.parent


def train(script: str, *arguments: str | Path, np: int = 2) -> str:
    """Return the output of an example, without the ranks' prefixes."""
    command = [sys.executable, str(ROOT / "examples" / script), *map(str, arguments)]
    if np > 1:
        command = [sys.executable, "-m", "farandole.cli", "run", "-np", str(np), *command]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return re.sub(r"^\[\d+\]<\w+>:", "", done.stdout, flags=re.M)


def numbers(pattern: str, output: str) -> list[float]:
    found = [float(each) for each in re.findall(pattern, output)]
    assert found, output
    return found


def test_mnist_learns() -> None:
    output = train("jax_mnist.py", "--epochs", "2", "--images", "2000", "--bf16-allreduce")
    assert numbers(r"epoch 2: loss [\d.]+, test accuracy ([\d.]+)%", output)[0] > 80.0


def test_mnist_from_files(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for part, rows in (("train", 200), ("t10k", 20)):
        images = generator.integers(0, 256, (rows, 28, 28)).astype(np.uint8)
        for name, values in (
            ("images-idx3", images),
            ("labels-idx1", generator.integers(0, 10, rows).astype(np.uint8)),
        ):
            header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
            (tmp_path / f"{part}-{name}-ubyte.gz").write_bytes(
                gzip.compress(header + values.tobytes())
            )
    assert "epoch 1: loss" in train("jax_mnist.py", "--epochs", "1", "--data", tmp_path, np=1)


@pytest.mark.skipif(
    not importlib.util.find_spec("flax"), reason="flax is not installed: it needs a newer JAX"
)
def test_flax() -> None:
    output = train("jax_flax.py", "--epochs", "2")
    losses = numbers(r"epoch \d: loss ([\d.]+)", output)
    assert losses[-1] < losses[0]
    assert mentions(output, "model")


@pytest.mark.skipif(
    not importlib.util.find_spec("equinox"), reason="equinox is not installed: it needs a newer JAX"
)
def test_equinox() -> None:
    losses = numbers(r"step \d+: loss ([\d.]+)", train("jax_equinox.py", "--steps", "100"))
    assert losses[-1] < losses[0] / 3
