"""The Keras examples learn, each on its own backend, on two processes."""

from __future__ import annotations

import difflib
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.keras.backends import BACKENDS, QUICK

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


def train(
    script: str,
    *arguments: str | Path,
    np: int = 2,
    backend: str = "tensorflow",
    fails: bool = False,
) -> str:
    """Return the output of an example, without the ranks' prefixes."""
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / script), *map(str, arguments)]
    if np > 1:
        command = [sys.executable, "-m", "farandole.cli", "run", "-np", str(np), *command]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "KERAS_BACKEND": backend}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return re.sub(r"^\[\d+\]<\w+>:", "", done.stderr if fails else done.stdout, flags=re.M)


def write_idx(folder: Path, part: str, count: int) -> None:
    """Write images of bars whose height is the label."""
    random = np.random.default_rng(count)
    labels = random.integers(0, 10, count).astype(np.uint8)
    images = random.integers(0, 50, (count, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * label + 4 : 2 * label + 6, 4:24] += 200
    for name, array in (
        (f"{part}-images-idx3-ubyte", images),
        (f"{part}-labels-idx1-ubyte", labels),
    ):
        header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape)
        (folder / name).write_bytes(header + array.tobytes())


def test_digits_are_learned(tmp_path: Path) -> None:
    output = train(
        "keras_mnist.py",
        "--images",
        "1000",
        "--epochs",
        "4",
        "--checkpoint",
        tmp_path / "best.keras",
        backend=QUICK,
    )
    found = re.search(
        rf"^{QUICK}: 2 process\(es\), accuracy ([\d.]+)%, all equal: True$", output, re.M
    )
    assert found, output
    assert float(found[1]) > 70.0
    assert output.count("Epoch ") == 4  # rank 0 alone speaks
    assert [each.name for each in tmp_path.iterdir()] == ["best.keras"]


def test_the_lab_on_one_process_and_on_two(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", 900)
    write_idx(tmp_path, "t10k", 200)
    arguments = ("--epochs", "3", "--batch-size", "32", "--data-dir", tmp_path)
    for script, np_ in (("fashion_mnist.py", 1), ("fashion_mnist_distributed.py", 2)):
        output = train(script, *arguments, np=np_)
        [accuracy] = re.findall(r"^test loss [\d.]+, test accuracy ([\d.]+)$", output, re.M)
        assert float(accuracy) > 0.9, output
    output = train(
        "fashion_mnist.py", "--data-dir", tmp_path / "none", np=1, fails=True, backend=QUICK
    )
    assert "train-images-idx3-ubyte" in output


def test_the_lab_differs_by_the_five_lines() -> None:
    one, other = (
        (EXAMPLES / name).read_text()
        for name in ("fashion_mnist.py", "fashion_mnist_distributed.py")
    )
    program, distributed = (text.split('"""', 2)[2].splitlines() for text in (one, other))
    changed = [
        line[2:]
        for line in difflib.ndiff(program, distributed)
        if line.startswith("+ ") and line[2:].strip()
    ]
    assert [line[-3:] for line in changed] == ["# 1", "# 2", "# 3", "# 4", "# 5"]


def test_chest_x_rays_are_classified(tmp_path: Path) -> None:
    path = tmp_path / "best.keras"
    arguments = (
        "--images",
        "400",
        "--image-size",
        "32",
        "--epochs",
        "5",
        "--decay",
        "0.9",
        "--checkpoint",
        path,
    )
    output = train("chest_xray.py", *arguments, backend=BACKENDS[-1])
    found = re.search(
        r"2 process\(es\), (\d) epochs, learning rate ([\d.]+) at the end; best model: AUC"
        r" ([\d.]+)",
        output,
    )
    assert found, output
    assert float(found[2]) < 0.002
    assert float(found[3]) > 0.9
    assert path.exists()


def test_chest_x_rays_from_a_folder(tmp_path: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 4)):
        for kind, bright in (("NORMAL", 60), ("PNEUMONIA", 160)):
            folder = tmp_path / part / kind
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray((random.integers(0, 60, (40, 40)) + bright).astype("uint8")).save(
                    folder / f"{number}.png"
                )
    arguments = (
        "--image-size",
        "16",
        "--batch-size",
        "4",
        "--epochs",
        "2",
        "--checkpoint",
        tmp_path / "best.keras",
    )
    assert "best model: AUC" in train(
        "chest_xray.py", "--data-folder", tmp_path, *arguments, backend=QUICK
    )
    assert "train must contain train/ and val/" in train(
        "chest_xray.py", "--data-folder", tmp_path / "train", np=1, fails=True, backend=QUICK
    )


def test_layers_on_two_processes_learn(tmp_path: Path) -> None:
    path = tmp_path / "plain.keras"
    output = train("keras_pipeline.py", "--epochs", "3", "--save", path, backend=BACKENDS[-1])
    assert output.startswith("rank 0: middle_0, middle_1, middle_2")
    found = re.search(r"^\w+, 1 x 2 ranks: loss ([\d.]+) -> ([\d.]+)$", output, re.M)
    assert found, output
    assert float(found[2]) < 0.7 * float(found[1])
    assert path.exists()
