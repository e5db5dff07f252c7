"""``mpiexec python train.py`` by MPICH, without mpi4py: the ranks agree by PMI-1. Also on two
hosts, over ssh.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from tests.job.bootstrap import tools
from tests.kits.hosts import Hosts

MPIEXEC = [str(Path(sys.executable).with_name("mpiexec.hydra")), "-n", "3"]
if not Path(MPIEXEC[0]).exists():
    pytest.skip("MPICH is not installed beside this Python", allow_module_level=True)


def test_a_job(tmp_path: Path) -> None:
    tools.check_success(tools.run(MPIEXEC, tmp_path), 3, "mpi")


def test_rank_0_serves_parameters(tmp_path: Path) -> None:
    tools.check_served(tools.run(MPIEXEC, tmp_path, "serves"), 3)


def test_a_rank_that_fails_ends_the_job_with_its_cause(tmp_path: Path) -> None:
    tools.check_failure(tools.run(MPIEXEC, tmp_path, "fails"))


class TestTwoHosts(tools.TwoHosts):
    command: ClassVar = [*MPIEXEC, "-hosts", "a:2,b:1"]
    environment: ClassVar = {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": "{ssh}"}

    @pytest.mark.parametrize("rank", [1, 2])
    def test_a_rank_that_never_calls_init_does_not_keep_the_others(
        self, two_hosts: Hosts, tmp_path: Path, rank: int
    ) -> None:
        lacking = (
            f"if [ $PMI_RANK = {rank} ]; then exec sleep 1000; fi; exec"
            f" {shlex.join(tools.program(tmp_path))}"
        )
        done = self.run(
            two_hosts, tmp_path, *self.command, "sh", "-c", lacking, FARANDOLE_START_TIMEOUT="3"
        )
        assert done.returncode != 0
        assert re.search(
            r"(did not|not all 3 ranks) reach(ed)? init\(\) within 3 s", done.stderr
        ), done.stderr
