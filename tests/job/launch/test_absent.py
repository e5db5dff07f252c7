"""Ranks that do not reach a collective, or never join the job; whole jobs, started as users do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits.messages import mentions

pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys, time
import numpy as np
if {late} and os.environ["HOROVOD_RANK"] == "1":
    print("loading", flush=True)
    open("loading", "w").close()
    time.sleep(100)
while {late} and not os.path.exists("loading"):
    time.sleep(0.01)
from farandole.job import context
from farandole.core.engine import Entry
from farandole.base.types import Buffer, DType, Kind, Request
context.init()
if context.rank() == 1:
    time.sleep(100)
array = np.ones(3, np.float32)
buffer = Buffer(array, array, DType.FLOAT32)
context.engine().run([Entry(Request("grad.weight", Kind.ALLREDUCE, DType.FLOAT32, (3,)), buffer)])
"""


def run(tmp_path: Path, *flags: str, late: bool) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(late=late))
    command = [
        sys.executable,
        "-m",
        "farandole.cli",
        "run",
        "-np",
        "2",
        *flags,
        sys.executable,
        str(program),
    ]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False
    )


def test_a_rank_absent_from_a_tensor_is_named_and_ends_the_job(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        "--stall-check-warning-time-seconds",
        "0.5",
        "--stall-check-shutdown-time-seconds",
        "3",
        late=False,
    )
    assert ended.returncode == 1
    assert mentions(ended.stderr, "0.5", "seconds")
    assert "[0]<stderr>:1: [grad.weight]" in ended.stderr
    assert "[0]<stderr>:1!: [grad.weight]" in ended.stderr
    assert mentions(ended.stderr, "Rank 0", "StalledError", "rank 1", "grad.weight", "3 s")
    assert "rank 1 is at" in ended.stderr


def test_a_rank_that_never_calls_init_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, "--start-timeout", "2", late=True)
    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    assert lines[0].startswith(
        "farandole: Rank 1 did not reach init() within 2 s. Every rank must call init()"
    )
    assert re.fullmatch(
        r"Rank 1 on localhost: process \d+ \(.*python.*\) is waiting \(.*\); its last line of output:"
        r" loading",
        lines[1],
    )
    assert lines[2:] == ["Rank 0 failed as a consequence."]
