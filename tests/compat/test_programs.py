"""Programs written for Horovod run unmodified under horovodrun and farandole run."""

from __future__ import annotations

import re

import pytest

from tests.compat.tools import FARANDOLE, HOROVODRUN, PROGRAMS, program

pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.slow

# What each rank prints when all is well.
SAYS = {
    "process_sets.py": "sets done",
    "join.py": "joined",
    "accumulation.py": "accumulated",
    "handles.py": "handled",
    "elastic.py": "trained",
}

# Ranks that import torch once and then run several programs, one after the other.
SEVERAL = """
import runpy, sys
import horovod.torch as hvd
for script in sys.argv[1:]:
    sys.argv[:] = [script]
    runpy.run_path(script, run_name="__main__")
    hvd.shutdown()
"""


def check_mnist(output: str, least: float) -> None:
    assert re.search(r"^Train Epoch: 1 \[0/80\]\tLoss: [\d.]+$", output, re.M)
    assert float(re.findall(r"Accuracy: ([\d.]+)%", output)[-1]) > least
    assert "spread 0.0\n" in output


def check_benchmark(output: str) -> None:
    assert re.search(r"^Img/sec per CPU: [\d.]+ \+-[\d.]+$", output, re.M)
    assert re.search(r"^Total img/sec on 2 CPU\(s\): [\d.]+ \+-[\d.]+$", output, re.M)


def test_mnist() -> None:
    check_mnist(program(HOROVODRUN, PROGRAMS / "mnist.py"), 80.0)


def test_mnist_with_its_options() -> None:
    flags = ("--fp16-allreduce", "--gradient-predivide-factor=2.0")
    check_mnist(program(HOROVODRUN, PROGRAMS / "mnist.py", "--epochs=4", *flags), 60.0)


def test_the_synthetic_benchmark() -> None:
    check_benchmark(program(HOROVODRUN, PROGRAMS / "synthetic_benchmark.py"))


@pytest.mark.parametrize(
    ("name", "np"),
    [
        ("process_sets.py", 2),
        ("join.py", 3),
        ("accumulation.py", 2),
        ("handles.py", 2),
        ("elastic.py", 2),
    ],
)
def test_a_program_on_every_rank(name: str, np: int) -> None:
    lines = program(HOROVODRUN, PROGRAMS / name, np=np).splitlines()
    assert sorted(lines) == [f"{SAYS[name]} {rank}" for rank in range(np)]


def test_all_of_them_under_farandole_run() -> None:
    names = ["mnist.py", "synthetic_benchmark.py", *SAYS]
    output = program(FARANDOLE, "-c", SEVERAL, *(str(PROGRAMS / name) for name in names))
    check_mnist(output, 80.0)
    check_benchmark(output)
    assert [output.count(f"{text} {rank}\n") for text in SAYS.values() for rank in (0, 1)] == [
        1
    ] * 10
