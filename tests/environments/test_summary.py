"""The closing summary of all environments gives the reason of each failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.environments.__main__ import (
    JOB_TESTS,
    JOBS,
    MAIN,
    MOST,
    PARTS,
    ROOT,
    Outcome,
    arguments,
    by_interpreter,
    causes,
    hidden,
    paths,
    slowest,
)

FAILING = """
import pytest

@pytest.fixture
def broken():
    raise OSError("no room")

def test_first(broken): ...

@pytest.mark.parametrize("text", ["a b"])
def test_second(text):
    print("rank 1 was late")
    assert text == "c", "\\n".join(f"said {number}" for number in range(1000))

def test_third(): ...
"""


def test_the_summary_has_errors_and_output_of_failed_tests(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-ra", "test_it.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    found = causes(done.stdout.splitlines())
    assert found[:3] == [
        "ERROR at setup of test_first:",
        "E       OSError: no room",
        "test_it.py:6: OSError",
    ]
    assert found[3:5] == ["test_second[a b]:", "E       AssertionError: said 0"]
    assert found[-3] == "test_it.py:13: AssertionError"
    assert found[-1] == "rank 1 was late"
    assert len(found) == 4 + MOST + 1 + 2


def test_skips_count_where_no_environment_runs_the_test() -> None:
    slurm = "SKIPPED [3] tests/conftest.py:81: munge is not installed"
    here = "SKIPPED [1] tests/test_run.py:7: not here"
    skipped = {
        "main": [slurm, here, "SKIPPED [1] tests/test_bench.py:9: no CUDA GPU"],
        "frameworks": ["SKIPPED [1] tests/jax/test_trees.py:5: does not apply: a kit's case"],
    }
    assert hidden(skipped) == [f"main: {slurm}", f"main: {here}"]
    both = "SKIPPED [1] tests/jax/test_foreign.py:20: other JAX"
    assert hidden({"frameworks": [], "oldest": [both]}) == []
    assert hidden({"oldest": [both]}) == [f"oldest: {both}"]


def test_a_skip_of_jobs_counts_as_one_of_main() -> None:
    slurm = "SKIPPED [3] tests/conftest.py:81: munge is not installed"
    results = {
        MAIN: Outcome(0, [], [], []),
        JOBS: Outcome(0, [], [slurm], []),
        "mpich": Outcome(0, [], [], []),
    }
    assert hidden(by_interpreter(results)) == [f"main: {slurm}"]


def test_parts_run_the_tests_their_environments_leave_out() -> None:
    assert arguments(MAIN) == [f"--ignore={path}" for path in JOB_TESTS]
    for name, part in PARTS.items():
        assert arguments(name) == list(part.tests)
        assert all((ROOT / path).exists() for path in part.tests)
    apart = [*arguments("frameworks"), *arguments("spark")]
    assert sorted(apart) == sorted(paths("frameworks"))


def test_times_are_read_from_durations() -> None:
    lines = ["= slowest 2 durations =", "12.30s call     tests/a.py::test_b[c d]", "1.00s setup  x"]
    assert slowest(lines) == [(12.3, "tests/a.py::test_b[c d] (call)"), (1.0, "x (setup)")]


def test_one_line_may_skip_other_cases_in_other_environments() -> None:
    line = "SKIPPED [1] tests/core/api/test_names.py:48: {} is not installed"
    every = {
        "main": [line.format("jax"), line.format("mxnet")],
        "frameworks": [line.format("mxnet")],
        "mxnet": [line.format("jax")],
    }
    assert hidden(every) == []
    assert hidden({**every, "mxnet": [line.format("jax"), line.format("mxnet")]}) != []
