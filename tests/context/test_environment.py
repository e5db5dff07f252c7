"""What the environment says of the job that a process belongs to."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.context.environment import lost
from tests.launch.tools import Marked, marked

RANK = "PATH=/bin\0FARANDOLE_STORE=127.0.0.1:1\0FARANDOLE_RANK=1\0FARANDOLE_SIZE=3\0"


@pytest.fixture
def jobs() -> Iterator[Marked]:
    with marked() as found:
        yield found


def written(proc: Path, pid: int, above: int, environ: str | None) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} (a) b) S {above} 1 1")
    if environ is not None:
        (proc / str(pid) / "environ").write_text(environ)


@pytest.mark.parametrize(
    ("own", "above", "expected"),
    [
        (RANK, "", "this process is rank 1 of 3, but .* FARANDOLE_SIZE=1"),
        ("A=b\0", RANK, "process 7, above this one, is rank 1 of 3, but"),
        (None, RANK, "process 7, above"),
        ("", "", ""),
        ("no name\0", RANK.replace("3", "1"), ""),
        ("", RANK.replace("STORE", "HOME"), ""),
        ("", None, ""),
    ],
)
def test_a_rank_that_lost_its_variables(tmp_path: Path, own: str | None, above: str | None, expected: str) -> None:
    written(tmp_path, os.getpid(), 7, own)
    written(tmp_path, 7, 6, above)  # the one above that has ended
    found = lost({}, tmp_path)
    assert bool(found) == bool(expected)
    assert re.match(expected, found)
    assert lost({"FARANDOLE_SIZE": "1"}, tmp_path) == ""
    assert lost({"OMPI_COMM_WORLD_RANK": "0"}, tmp_path) == ""  # mpirun -np 1 within a rank


def test_the_rank_says_so(jobs: Marked) -> None:
    code = "import farandole.numpy as hvd; hvd.init(); print(hvd.size())"
    path = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"
    done = jobs.run("run", "-np", "2", "env", "-i", path, sys.executable, "-c", code)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[0]<stdout>:1", "[1]<stdout>:1"])
    assert len(re.findall(r"process \d+, above this one, starts a job's ranks, but", done.stderr)) == 2
