"""The main example learns on one process and on two, from every kind of data, and resumes; the
other examples run on two processes with tiny settings.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tests.kits.messages import mentioning

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")


def mnist() -> Path | None:
    places = [os.environ.get("FARANDOLE_DATA", ""), ROOT.parent / "shared" / "data" / "mnist"]
    return next(
        (Path(each) for each in places if each and any(Path(each).glob("t10k-images*"))), None
    )


def train(*arguments: str | Path, np: int = 1, script: str = "torch_digits.py") -> str:
    """Return the output of an example, without the ranks' prefixes."""
    command = [sys.executable, str(ROOT / "examples" / script), *map(str, arguments)]
    if np > 1:
        command = [sys.executable, "-m", "farandole.cli", "run", "-np", str(np), *command]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return re.sub(r"^\[\d+\]<\w+>:", "", done.stdout, flags=re.M)


def accuracy(output: str) -> float:
    found = re.search(
        r"^test accuracy ([\d.]+)% in [\d.]+ s of training on \d+ process\(es\)$", output, re.M
    )
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


def test_mnist_from_its_idx_files() -> None:
    folder = mnist()
    if folder is None:
        pytest.skip("MNIST is not here: name its folder in FARANDOLE_DATA")
    output = train("--data", folder, "--epochs", "2", "--batch-size", "64", np=2)
    assert re.search(r"^(9000 training and 1000|60000 training and 10000) test digits", output)
    assert accuracy(output) > 90.0


def test_training_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    """Three processes begin, which do not divide the rows; two continue."""
    arguments = ("--batch-size", "50", "--checkpoint", tmp_path / "part.pt")
    assert "epoch  2/2" in train("--epochs", "2", *arguments, np=3)
    rest = train("--epochs", "3", *arguments, np=2)
    assert "resuming after epoch 2" in rest
    assert "epoch  2/3" not in rest
    assert "epoch  3/3" in rest
    assert [path.name for path in tmp_path.iterdir()] == ["part.pt"]


def load(name: str) -> ModuleType:
    """Load an example as a module, which can import its neighbours."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load("torch_digits")


def test_a_file_that_is_no_checkpoint_is_named(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.pt").write_bytes(b"nothing of the kind")
    monkeypatch.setattr(example, "hvd", SimpleNamespace(rank=lambda: 0))
    with pytest.raises(SystemExit, match=mentioning("bad.pt", "checkpoint")):
        example.resume(tmp_path / "bad.pt", example.make_model(8), None)


@pytest.mark.parametrize(
    ("script", "arguments", "says"),
    [
        (
            "torch_digits",
            ["--data", "/no/such/folder"],
            "/no/such/folder holds neither t10k-images-idx3-ubyte nor",
        ),
        ("torch_digits", ["--epochs", "0"], "--epochs=0 must be greater than 0"),
        ("torch_digits", ["--lr", "-1"], "--lr=-1.0 must be greater than 0"),
        ("torch_imagenet_resnet50", [], "give --train-dir and --val-dir, or --synthetic"),
    ],
)
def test_a_wrong_argument_is_named(
    script: str,
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(SystemExit) as caught:
        load(script).main()
    assert says in str(caught.value) + capsys.readouterr().err


def idx(values: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(
        int(n).to_bytes(4, "big") for n in values.shape
    )
    return header + values.astype(np.uint8).tobytes()


def write_mnist(folder: Path, part: str, rows: int, *, zipped: bool) -> None:
    for name, values in (
        ("images-idx3", np.full((rows, 28, 28), 255)),
        ("labels-idx1", np.arange(rows) % 10),
    ):
        content = idx(values)
        path = folder / f"{part}-{name}-ubyte{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(content) if zipped else content)


@pytest.mark.parametrize("zipped", [False, True])
def test_both_parts_of_mnist_are_used_if_present(
    example: ModuleType, tmp_path: Path, zipped: bool
) -> None:
    write_mnist(tmp_path, "train", 30, zipped=zipped)
    write_mnist(tmp_path, "t10k", 12, zipped=zipped)
    images, labels, test_images, test_labels = example.load_mnist(tmp_path)
    assert [tuple(each.shape) for each in (images, labels, test_images, test_labels)] == [
        (30, 1, 28, 28),
        (30,),
        (12, 1, 28, 28),
        (12,),
    ]
    assert (images.max().item(), labels[11].item()) == (1.0, 1)


def test_the_test_part_alone_is_shared_out(example: ModuleType, tmp_path: Path) -> None:
    write_mnist(tmp_path, "t10k", 10_000, zipped=True)
    images, _, test_images, _ = example.load_mnist(tmp_path)
    assert (len(images), len(test_images)) == (9000, 1000)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b"\x01" + b[1:], lambda b: b[:2], lambda b: b + b"x"]
)
def test_a_damaged_idx_file_is_named(example: ModuleType, tmp_path: Path, damage) -> None:
    (tmp_path / "x").write_bytes(damage(idx(np.zeros((2, 3)))))
    with pytest.raises(SystemExit, match=mentioning("IDX", "file")):
        example.read_idx(tmp_path, "x")


# The other examples.

TINY = ["--blocks", "1", "1", "1", "1", "--width", "8", "--image-size", "32", "--batch-size", "2"]


def numbers(pattern: str, output: str) -> list[float]:
    found = [float(each) for each in re.findall(pattern, output)]
    assert found, output
    return found


def test_every_example_has_its_test() -> None:
    here = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_examples.py"))
    scripts = [
        path.name for path in (ROOT / "examples").glob("*.py") if "__main__" in path.read_text()
    ]
    assert len(scripts) >= 8
    assert [name for name in scripts if f'"{name}"' not in here] == []


def test_mnist_learns() -> None:
    """The example starts its own ranks."""
    output = train(
        "--epochs", "4", "--fp16-allreduce", "--num-proc", "2", np=1, script="torch_mnist.py"
    )
    assert numbers(r"epoch 4: .*test accuracy ([\d.]+)%", output)[0] > 80.0


def test_resnet_learns_to_tell_made_up_images_apart_and_resumes(tmp_path: Path) -> None:
    arguments = [
        *TINY,
        "--synthetic",
        "32",
        "--classes",
        "2",
        "--warmup-epochs",
        "1",
        "--base-lr",
        "0.05",
    ]
    arguments += [
        "--batch-size",
        "4",
        "--batches-per-step",
        "2",
        "--checkpoint",
        str(tmp_path / "resnet.pt"),
    ]
    script = "torch_imagenet_resnet50.py"
    losses = numbers(
        r"epoch \d+: loss ([\d.]+)", train(*arguments, "--epochs", "8", np=2, script=script)
    )
    assert len(losses) == 8
    assert losses[-1] < 0.7 * losses[0]
    assert numbers(r"epoch (\d+):", train(*arguments, "--epochs", "9", np=2, script=script)) == [9]


def test_resnet_50_has_its_size() -> None:
    # as published
    assert sum(each.numel() for each in load("resnet").resnet().parameters()) == 25_557_032


def test_the_synthetic_benchmark_prints_horovods_lines() -> None:
    arguments = [
        "--num-warmup-batches",
        "1",
        "--num-batches-per-iter",
        "2",
        "--num-iters",
        "2",
        *TINY,
    ]
    output = train(*arguments, np=2, script="torch_synthetic_benchmark.py")
    assert len(re.findall(r"^Iter #\d: [\d.]+ img/sec per CPU$", output, re.M)) == 2
    [each] = numbers(r"(?m)^Img/sec per CPU: ([\d.]+) \+-[\d.]+$", output)
    [total] = numbers(r"(?m)^Total img/sec on 2 CPU\(s\): ([\d.]+) \+-[\d.]+$", output)
    assert abs(total - 2 * each) <= 0.2


def test_gradients_are_accumulated() -> None:
    output = train("--steps", "20", "--passes", "3", np=2, script="torch_gradient_accumulation.py")
    losses = numbers(r"loss ([\d.]+) on 48 rows", output)
    assert losses[-1] < losses[0] / 10


def test_adasum_adds_orthogonal_and_averages_equal_gradients() -> None:
    output = train("--steps", "40", np=2, script="torch_adasum.py")
    assert "orthogonal vectors: [1.0, 1.0], equal vectors: [1.0, 1.0]" in output
    losses = numbers(r"loss ([\d.]+)", output)
    assert losses[-1] < losses[0]


def test_each_process_set_trains_its_own_model() -> None:
    output = train("--steps", "60", np=3, script="torch_process_sets.py")
    found = re.findall(r"ranks (\[.*?\]): mean weight ([+-][\d.]+), spread ([\d.]+)", output)
    assert [(ranks, round(float(weight)), spread) for ranks, weight, spread in found] == [
        ("[0, 2]", 1, "0.0"),
        ("[1]", -1, "0.0"),
    ]


def test_ranks_with_uneven_data_join() -> None:
    output = train("--batches", "3", np=3, script="torch_join.py")
    assert re.findall(
        r"on (\d) batches; the last to finish was rank 2", "".join(sorted(output.splitlines()))
    ) == [
        "3",
        "6",
        "9",
    ]
    assert "all ranks equal: True" in output
