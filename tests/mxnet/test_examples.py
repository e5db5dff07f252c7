"""The example learns on one process and on two, from files and without."""

from __future__ import annotations

import gzip
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.kits.messages import mentions

pytest.importorskip("mxnet", reason="mxnet is not installed")

ROOT = Path(__file__).parent.parent.parent


def train(
    *arguments: str | Path, np: int = 1, fails: bool = False, script: str = "mxnet_mnist.py"
) -> str:
    """Return the output of an example, without the ranks' prefixes."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(ROOT / "examples" / script),
        *map(str, arguments),
    ]
    if np > 1:
        command = [sys.executable, "-m", "farandole.cli", "run", "-np", str(np), *command]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return re.sub(r"^\[\d+\]<\w+>:", "", done.stderr if fails else done.stdout, flags=re.M)


def accuracies(output: str) -> list[float]:
    return [
        float(each)
        for each in re.findall(r"^epoch \d+: loss [\d.]+, test accuracy ([\d.]+)%$", output, re.M)
    ]


@pytest.mark.parametrize(("np", "arguments"), [(1, []), (2, ["--fp16-allreduce"])])
def test_made_up_digits_are_learned(np: int, arguments: list[str]) -> None:
    found = accuracies(train("--epochs", "4", *arguments, np=np))
    assert len(found) == 4  # rank 0 alone speaks
    assert found[-1] > 95.0


def write(folder: Path, part: str, count: int, zipped: bool) -> None:
    random = np.random.default_rng(count)
    labels = random.integers(0, 10, count).astype(np.uint8)
    images = random.integers(0, 50, (count, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):  # a bar whose height is the digit
        image[2 * label + 4 : 2 * label + 6, 4:24] += 200
    for name, array in (
        (f"{part}-images-idx3-ubyte", images),
        (f"{part}-labels-idx1-ubyte", labels),
    ):
        content = (
            bytes([0, 0, 8, array.ndim])
            + struct.pack(f">{array.ndim}i", *array.shape)
            + array.tobytes()
        )
        (folder / (name + ".gz" * zipped)).write_bytes(
            gzip.compress(content) if zipped else content
        )


def test_idx_files(tmp_path: Path) -> None:
    write(tmp_path, "train", 2000, zipped=True)
    write(tmp_path, "t10k", 500, zipped=False)
    assert accuracies(train("--data", tmp_path, "--epochs", "3", np=2))[-1] > 95.0


def test_the_test_part_alone_is_shared_out(tmp_path: Path) -> None:
    write(tmp_path, "t10k", 2500, zipped=True)
    assert accuracies(train("--data", tmp_path, "--epochs", "3"))[-1] > 90.0


def test_a_missing_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    assert "has neither train-images-idx3-ubyte nor" in train("--data", tmp_path, fails=True)
    write(tmp_path, "train", 10, zipped=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    assert mentions(train("--data", tmp_path, fails=True), "idx3", "IDX")
