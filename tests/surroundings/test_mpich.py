"""``mpiexec python train.py`` by MPICH, without mpi4py: the ranks agree by PMI-1. Also on two hosts, over ssh."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kits.hosts import Hosts, hosts
from tests.surroundings import tools

BESIDE = Path(sys.executable).parent
MPIEXEC = [str(BESIDE / "mpiexec.hydra"), "-n", "3"]
if not Path(MPIEXEC[0]).exists():
    pytest.skip("MPICH is not installed beside this Python", allow_module_level=True)


def test_a_job(tmp_path: Path) -> None:
    tools.check_success(tools.run(MPIEXEC, tmp_path), 3, "mpi")


def test_a_rank_that_fails_ends_the_job_with_its_cause(tmp_path: Path) -> None:
    tools.check_failure(tools.run(MPIEXEC, tmp_path, "fails"))


@pytest.fixture(scope="module")
def made() -> Iterator[Hosts]:
    with hosts(2) as made:
        yield made
        assert made.idle()


class TestTwoHosts:
    def run(self, made: Hosts, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
        ssh = folder / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec ssh -F {made.config} "$@"\n')
        ssh.chmod(0o755)
        env = {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": str(ssh), "PATH": f"{BESIDE}:{os.environ['PATH']}"}
        return subprocess.run(
            made[0].command(*command),
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def test_the_ranks_find_their_places_and_rank_0(self, made: Hosts, tmp_path: Path) -> None:
        done = self.run(made, tmp_path, *MPIEXEC, "-hosts", "a:2,b:1", *tools.program(tmp_path))
        lines = tools.check_hosts_of_two_and_one(done)
        assert {line[-2] for line in lines} == {made[0].address}, "of torch.distributed's master"

    def test_the_launcher_starts_agents_there(self, made: Hosts, tmp_path: Path) -> None:
        ours = [sys.executable, "-m", "farandole", "run", "-np", "3", "-v", "--launcher", "mpi", "-H", "a:2,b:1"]
        done = self.run(made, tmp_path, *ours, "sh", "-c", "echo $(hostname) $HOROVOD_RANK $HOROVOD_CROSS_RANK")
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [
            "[0]<stdout>:a 0 0",
            "[1]<stdout>:a 1 0",
            "[2]<stdout>:b 2 1",
        ]
        assert "farandole: ranks on a:2, b:1" in done.stderr
