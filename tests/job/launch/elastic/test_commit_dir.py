"""Elastic jobs that continue from a folder: a job that is started again, and a rank that has lost
all others.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits.messages import mentions

pytestmark = pytest.mark.slow

TRAIN = """
import os, sys, time
from pathlib import Path
import numpy as np
import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.commits.keeper import write_now
from farandole.core.api.state import ObjectState
folder, mode = Path(sys.argv[1]), sys.argv[2]
hvd.init()
class Slow(ObjectState):
    def sync(self):
        if mode == "join" and hvd.size() == 2:
            (folder / "joined").touch()
            os._exit(3) if hvd.rank() == 0 else time.sleep(0.1)
        super().sync()
state = Slow(step=0, total=0.0)
@elastic.run
def train(state):
    print(f"begin {state.step} {state.total:g}", flush=True)
    while state.step < 10:
        if mode == "fail" and state.step == 6:
            assert write_now() == (hvd.rank() == 0)
            hvd.allreduce(np.ones(1), name="written")
            os._exit(3)
        state.total += float(hvd.allreduce(np.ones(3), op=hvd.Average, name="x")[0])
        state.step += 1
        state.commit()
        if mode == "join" and state.step == 6:
            while not (folder / "joined").exists():
                (folder / "hosts").write_text("localhost:1\\n127.0.0.1:1\\n")
                time.sleep(0.02)
                state.commit()
train(state)
print(f"end {state.step} {state.total:g}", flush=True)
"""


def run(folder: Path, mode: str, *words: str) -> tuple[int, str, str]:
    """Return the exit code, the output and the messages of an elastic job."""
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "farandole", "run", *words]
    folders = ["--commit-dir", str(folder / "commits"), "--commit-dir-seconds", "0"]
    train = [sys.executable, str(folder / "train.py"), str(folder), mode]
    done = subprocess.run(
        [*command, *folders, *train], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_a_job_that_is_started_again_continues(tmp_path: Path) -> None:
    words = ("-np", "2", "--min-np", "2")
    code, out, err = run(tmp_path, "fail", *words)
    assert code, err
    assert mentions(err, "--commit-dir", "--retries")
    code, out, err = run(tmp_path, "", *words)
    assert code == 0, err
    assert (out.count("begin 6 6"), out.count("end 10 10")) == (2, 2)
    assert mentions([*out.splitlines(), *err.splitlines()], "commit 6")
    code, out, err = run(tmp_path, "", *words)
    assert (code, out.count("begin 10 10")) == (0, 2), err


def test_a_refused_folder_is_not_recommended(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "commit-000000000001").write_bytes(b"damaged")
    code, _, err = run(tmp_path, "", "-np", "2", "--min-np", "2")
    assert code
    assert mentions(err, "--commit-dir", "commit-000000000001")
    assert "--retries" not in err


def test_a_rank_that_has_lost_all_others_loads_the_last_commit(tmp_path: Path) -> None:
    listed = tmp_path / "hosts"
    listed.write_text("localhost:1\n")
    words = ("-np", "1", "--min-np", "1", "--host-discovery-script", f"file:{listed}")
    code, out, err = run(tmp_path, "join", *words)
    assert code == 0, err
    begins = [line.rpartition("begin ")[2] for line in out.splitlines() if "begin" in line]
    assert begins[0] == "0 0"
    assert begins[-1] == "6 6"
    assert "end 10 10" in out
