"""Programs that a cluster's own command starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

OURS = ("FARANDOLE_", "HOROVOD_", "OMPI_", "PMI", "MPI_", "SLURM", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
PROGRAM = """
import os, sys
import numpy as np
import farandole.numpy as hvd

hvd.init()
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE", "FARANDOLE_LAUNCHER"]
if sys.argv[1:] == ["fails"]:
    if hvd.rank() == 1:
        raise ValueError("no more data")
total = hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum)
hvd.shutdown()
hvd.init()
facts = [hvd.rank(), hvd.local_rank(), hvd.cross_rank(), hvd.is_homogeneous(), total.tolist(),
         *(os.environ[name] for name in names), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"].isdigit()]
sys.stdout.write(" ".join(map(str, facts)) + "\\n")  # in one piece: print's may mix with those of other ranks
"""


def program(folder: Path, *arguments: str) -> list[str]:
    """The command that runs ``PROGRAM``."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    return [sys.executable, str(script), *arguments]


def run(command: Sequence[str], folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The end of ``PROGRAM``, started by ``command``."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return subprocess.run(
        [*command, *program(folder, *arguments)], env={**clean, **env}, capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip


def lines_of(size: int, launcher: str) -> list[str]:
    """What ``PROGRAM`` prints on one host, by rank."""
    total = [float(size)] * 3
    return [
        f"{rank} {rank} 0 True {total} {rank} {size} {rank} {size} {rank} {size} {launcher} 127.0.0.1 True"
        for rank in range(size)
    ]


def check_success(done: subprocess.CompletedProcess[str], size: int, launcher: str) -> None:
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == lines_of(size, launcher), done.stderr


def check_failure(done: subprocess.CompletedProcess[str]) -> None:
    """The cause is told by the rank itself, by those that wait for it, and at the end by rank 0."""
    assert done.returncode not in (0, None)
    assert "ValueError: no more data" in done.stderr
    assert "Rank 1 shut down or ended while rank 0 waited" in done.stderr
    assert "farandole: rank 1 on " in done.stderr
    assert " failed: ValueError: no more data" in done.stderr


def check_hosts_of_two_and_one(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """The words of the three ranks, in order: two of them on the first host."""
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in sorted(done.stdout.splitlines())]
    assert [line[:4] for line in lines] == [  # rank, local rank, cross rank, homogeneous
        ["0", "0", "0", "False"],
        ["1", "1", "0", "False"],
        ["2", "0", "1", "False"],
    ]
    assert [line[4:7] for line in lines] == [["[3.0,", "3.0,", "3.0]"]] * 3
    return lines
