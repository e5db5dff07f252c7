"""The main example: it learns, on one process and on two, from every kind of data, and resumes."""

from __future__ import annotations

import gzip
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "torch_digits.py"

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")


def mnist() -> Path | None:
    places = [os.environ.get("FARANDOLE_DATA", ""), ROOT.parent / "shared" / "data" / "mnist"]
    return next((Path(each) for each in places if each and any(Path(each).glob("t10k-images*"))), None)


def train(*arguments: str | Path, np: int = 1, fails: bool = False) -> str:
    """What the example prints, without the ranks' prefixes."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    if np > 1:
        command = [sys.executable, "-m", "farandole.cli", "run", "-np", str(np), *command]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=env, stdin=subprocess.DEVNULL)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return re.sub(r"^\[\d+\]<\w+>:", "", done.stderr if fails else done.stdout, flags=re.M)


def accuracy(output: str) -> float:
    found = re.search(r"^test accuracy ([\d.]+)% in [\d.]+ s of training on \d+ process\(es\)$", output, re.M)
    assert found, output
    return float(found[1])


@pytest.fixture(scope="module")
def one() -> float:
    return accuracy(train())


def test_one_process_reads_97_of_100_digits(one: float) -> None:
    assert one >= 97.0


def test_two_processes_read_as_many_as_one(one: float) -> None:
    output = train(np=2)
    assert "on 2 process(es)" in output
    assert output.count("epoch ") == 30  # rank 0 alone shows the progress
    assert accuracy(output) >= 97.0
    assert abs(accuracy(output) - one) <= 1.0


def test_three_processes_share_what_they_do_not_divide() -> None:
    output = train("--epochs", "2", "--batch-size", "50", np=3)
    assert "epoch  2/2" in output


def test_mnist_from_its_idx_files() -> None:
    folder = mnist()
    if folder is None:
        pytest.skip("MNIST is not here: name its folder in FARANDOLE_DATA")
    output = train("--data", folder, "--epochs", "2", "--batch-size", "64", np=2)
    assert re.search(r"^(9000 training and 1000|60000 training and 10000) test digits", output)
    assert accuracy(output) > 90.0


def test_training_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    whole = train("--epochs", "3", "--checkpoint", tmp_path / "whole.pt")
    first = train("--epochs", "2", "--checkpoint", tmp_path / "part.pt", np=2)
    assert "epoch  2/2" in first
    rest = train("--epochs", "3", "--checkpoint", tmp_path / "part.pt", np=2)
    assert "resuming after epoch 2" in rest
    assert "epoch  2/3" not in rest
    assert "epoch  3/3" in rest
    assert "epoch  3/3" in whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part.pt", "whole.pt"]


def test_a_file_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.pt").write_bytes(b"nothing of the kind")
    assert "bad.pt is no checkpoint of this model" in train("--checkpoint", tmp_path / "bad.pt", fails=True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--data", "/no/such/folder"], "/no/such/folder holds neither t10k-images-idx3-ubyte nor t10k-images"),
        (["--epochs", "0"], "--epochs=0 must be greater than 0"),
        (["--lr", "-1"], "--lr=-1.0 must be greater than 0"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], says: str) -> None:
    assert says in train(*arguments, fails=True)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torch_digits", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def idx(values: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in values.shape)
    return header + values.astype(np.uint8).tobytes()


def write_mnist(folder: Path, part: str, rows: int, *, zipped: bool) -> None:
    for name, values in (("images-idx3", np.full((rows, 28, 28), 255)), ("labels-idx1", np.arange(rows) % 10)):
        content = idx(values)
        path = folder / f"{part}-{name}-ubyte{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(content) if zipped else content)


@pytest.mark.parametrize("zipped", [False, True])
def test_both_parts_of_mnist_are_used_when_they_are_there(example: ModuleType, tmp_path: Path, zipped: bool) -> None:
    write_mnist(tmp_path, "train", 30, zipped=zipped)
    write_mnist(tmp_path, "t10k", 12, zipped=zipped)
    images, labels, test_images, test_labels = example.load_mnist(tmp_path)
    assert [tuple(each.shape) for each in (images, labels, test_images, test_labels)] == [
        (30, 1, 28, 28), (30,), (12, 1, 28, 28), (12,),
    ]  # fmt: skip
    assert (images.max().item(), labels[11].item()) == (1.0, 1)


def test_the_test_part_alone_is_shared_out(example: ModuleType, tmp_path: Path) -> None:
    write_mnist(tmp_path, "t10k", 10_000, zipped=True)
    images, _, test_images, _ = example.load_mnist(tmp_path)
    assert (len(images), len(test_images)) == (9000, 1000)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"\x01" + b[1:], lambda b: b[:2], lambda b: b + b"x"])
def test_a_damaged_idx_file_is_named(example: ModuleType, tmp_path: Path, damage) -> None:
    (tmp_path / "x").write_bytes(damage(idx(np.zeros((2, 3)))))
    with pytest.raises(SystemExit, match="x is not a whole IDX file"):
        example.read_idx(tmp_path, "x")
