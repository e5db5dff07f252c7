"""Programs that a cluster's own command starts, on one host and on several."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tests.kits.hosts import Hosts
from tests.kits.messages import mentions
from tests.kits.patience import PATIENT

OURS = (
    "FARANDOLE_",
    "HOROVOD_",
    "OMPI_",
    "PMI",
    "MPI_",
    "SLURM",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
)
PROGRAM = """
import os, sys
import numpy as np
import farandole.numpy as hvd

if sys.argv[1:2] == ["without"] and sys.argv[2] == os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")):
    sys.exit(0)
hvd.init()
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE", "FARANDOLE_LAUNCHER"]
if sys.argv[1:] == ["fails"]:
    if hvd.rank() == 1:
        raise ValueError("no more data")
if sys.argv[1:] == ["serves"]:
    from farandole.strategies.options import GradientOptions
    from farandole.strategies.specs import strategy_of
    from farandole.strategies.weights import WeightExchange

    found = []
    for spec, codec in ("ps", "topk:0.25"), ("ps_async", "int8"), ("gossip_async", ""):
        exchange = WeightExchange(spec, GradientOptions(codec=codec), strategy_of(spec))
        weights = [np.zeros(8)]
        slots = exchange.slots(weights)
        for step in (1, 2, 3):
            weights[0] += hvd.rank() + 1
            exchange(weights, slots, step)
        exchange.average(weights, slots)
        found += sorted(set(weights[0].round(1).tolist()))
    sys.stdout.write(f"{found}\\n")
    sys.exit(0)
total = hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum)
hvd.shutdown()
hvd.init()
facts = [hvd.rank(), hvd.local_rank(), hvd.cross_rank(), hvd.is_homogeneous(), total.tolist(),
         *(os.environ[name] for name in names), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"].isdigit()]
sys.stdout.write(" ".join(map(str, facts)) + "\\n")  # in one piece: print's may mix with those of other ranks
"""


def program(folder: Path, *arguments: str) -> list[str]:
    """Return the command that runs ``PROGRAM``."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    return [sys.executable, str(script), *arguments]


def run(
    command: Sequence[str], folder: Path, *arguments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run ``PROGRAM`` by ``command`` to its end."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return subprocess.run(
        [*command, *program(folder, *arguments)],
        env={**clean, **PATIENT, **env},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def lines_of(size: int, launcher: str) -> list[str]:
    """Return the output of ``PROGRAM`` on one host, by rank."""
    total = [float(size)] * 3
    return [
        f"{rank} {rank} 0 True {total} {rank} {size} {rank} {size} {rank} {size} {launcher}"
        " 127.0.0.1 True"
        for rank in range(size)
    ]


def check_success(done: subprocess.CompletedProcess[str], size: int, launcher: str) -> None:
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == lines_of(size, launcher), done.stderr


def check_served(done: subprocess.CompletedProcess[str], size: int) -> None:
    """Check three steps of rank + 1: the mean of all ranks by servers and in the background, and
    their sum by servers that take each push.
    """
    assert done.returncode == 0, done.stderr
    total = 3.0 * size * (size + 1) / 2
    assert done.stdout.splitlines() == [str([total / size, total, total / size])] * size, (
        done.stderr
    )


def check_failure(done: subprocess.CompletedProcess[str]) -> None:
    """Check that the failed rank, the waiting ranks, and at the end rank 0 report the cause."""
    assert done.returncode not in (0, None)
    assert "ValueError: no more data" in done.stderr
    assert mentions(done.stderr, "Rank 1", "rank 0")
    assert "farandole: rank 1 on " in done.stderr
    assert " failed: ValueError: no more data" in done.stderr


def check_hosts_of_two_and_one(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """Check the lines of the three ranks, in order: two of them on the first host."""
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in sorted(done.stdout.splitlines())]
    assert [line[:4] for line in lines] == [  # rank, local rank, cross rank, homogeneous
        ["0", "0", "0", "False"],
        ["1", "1", "0", "False"],
        ["2", "0", "1", "False"],
    ]
    assert [line[4:7] for line in lines] == [["[3.0,", "3.0,", "3.0]"]] * 3
    return lines


class TwoHosts:
    """An mpirun on hosts that it reaches by ssh. ``command``: starts three ranks, two on the first
    host.
    """

    command: ClassVar[list[str]]
    environment: ClassVar[dict[str, str]]
    """Variables that name the ssh of mpirun; its path replaces ``{ssh}``."""

    def run(
        self, made: Hosts, folder: Path, *command: str, **more: str
    ) -> subprocess.CompletedProcess[str]:
        ssh = folder / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec ssh -F {made.config} "$@"\n')
        ssh.chmod(0o755)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        own = {name: value.format(ssh=ssh) for name, value in self.environment.items()}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        # Open MPI's daemons name folders by their numbers, which are the same on hosts that are
        # recreated
        session = {"PRTE_MCA_prte_tmpdir_base": str(folder)}
        return subprocess.run(
            made[0].command(*command),
            env={**clean, **own, **session, "PATH": path, **more},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def test_the_ranks_find_their_places_and_rank_0(self, two_hosts: Hosts, tmp_path: Path) -> None:
        done = self.run(two_hosts, tmp_path, *self.command, *program(tmp_path))
        lines = check_hosts_of_two_and_one(done)
        assert {line[-2] for line in lines} == {two_hosts[0].address}, (
            "of torch.distributed's master"
        )

    def test_the_launcher_starts_agents_there(self, two_hosts: Hosts, tmp_path: Path) -> None:
        ours = [
            sys.executable,
            "-m",
            "farandole",
            "run",
            "-np",
            "3",
            "-v",
            "--launcher",
            "mpi",
            "-H",
            "a:2,b:1",
        ]
        done = self.run(
            two_hosts,
            tmp_path,
            *ours,
            "sh",
            "-c",
            "echo $(hostname) $HOROVOD_RANK $HOROVOD_CROSS_RANK",
        )
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [
            "[0]<stdout>:a 0 0",
            "[1]<stdout>:a 1 0",
            "[2]<stdout>:b 2 1",
        ]
        assert "farandole: ranks on a:2, b:1" in done.stderr
