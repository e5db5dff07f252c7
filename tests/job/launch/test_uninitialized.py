"""Jobs whose ranks never call ``init()``: each trains a separate model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.job.launch.tools import Marked
from tests.kits.messages import mentions

pytestmark = pytest.mark.slow

TORCH = """
import torch

def train():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.rand(8, 4)).square().mean().backward()
        optimizer.step()
    print("trained", flush=True)
"""
DISTRIBUTED = """
import torch.distributed as dist
dist.init_process_group("gloo")
train()
dist.destroy_process_group()
"""
JOINED = "import farandole.torch as hvd; hvd.init(); train()"
FUNCTION = "import farandole; farandole.run(train, np=2)"


@pytest.mark.parametrize(("then", "reported"), [("train()", 1), (DISTRIBUTED, 0), (JOINED, 0)])
def test_torch_is_named_at_the_first_step(then: str, reported: int, jobs: Marked) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    done = jobs.run("run", "-np", "2", sys.executable, "-c", TORCH + then)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if mentions(line, "init()", "PyTorch", "2")]
    assert len(lines) == reported


def test_a_function_of_one_process(jobs: Marked) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    done = jobs.finish(jobs.python("-c", TORCH + FUNCTION))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("init()") == 2  # once, with the cure
    assert "PyTorch" in done.stderr


@pytest.mark.parametrize("check", ["warn", "off"])
def test_another_framework_is_named_at_the_end(check: str, jobs: Marked, tmp_path: Path) -> None:
    """The function has loaded a module of that name."""
    (tmp_path / "keras.py").write_text("")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import farandole\n"
        f"farandole.run(lambda: __import__('keras') and None, np=2, check={check!r})"
    )
    done = jobs.finish(jobs.python("-c", code.replace("\\\\n", "\\n")))
    assert done.returncode == 0, done.stderr
    assert mentions(done.stderr, "Keras", "init()") == (check == "warn")


def test_a_command_that_has_mapped_the_library(jobs: Marked, tmp_path: Path) -> None:
    library = tmp_path / "libtensorflow_framework.so.2"
    library.write_bytes(bytes(4096))
    code = (
        "import mmap, sys, time; file = open(sys.argv[1], 'r+b'); held = mmap.mmap(file.fileno(), 0);"
        " time.sleep(3)"
    )
    done = jobs.run("run", "-np", "2", sys.executable, "-c", code, str(library))
    assert done.returncode == 0
    assert mentions(done.stderr, "TensorFlow", "init()", "2")
