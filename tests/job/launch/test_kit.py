"""The launchers of this environment run the kit of launchers. Spark's runs it in a separate
environment.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from farandole.job.plugins import registry
from tests.job.launch.tools import wait_until
from tests.kits.hosts import hosts
from tests.kits.launcher import Drive, LauncherKit, here
from tests.kits.slurm import Cluster

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
BESIDE = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


class TestLocal(LauncherKit):
    options: ClassVar = {"launcher": "local"}


@pytest.mark.skipif(
    not Path(sys.executable).with_name("mpirun").exists(),
    reason="no mpirun is installed beside this Python",
)
class TestMpi(LauncherKit):
    options: ClassVar = {"launcher": "mpi"}

    @pytest.fixture(scope="class")
    @classmethod
    def drive(cls) -> Drive:
        return lambda driver, env: here([sys.executable, str(driver)], {**env, "PATH": BESIDE})


class TestSsh(LauncherKit):
    """On two hosts, with one rank and with two; the first is the driver's."""

    np: ClassVar = 3
    options: ClassVar = {"hosts": "a:1,b:2"}

    @pytest.fixture(scope="class")
    @classmethod
    def drive(cls) -> Iterator[Drive]:
        with hosts(2) as made:

            def drive(driver: Path, env: Mapping[str, str]) -> str:
                sources = os.pathsep.join([str(ROOT / "src"), str(ROOT / "compat" / "src")])
                own = {"PYTHONPATH": sources, "FARANDOLE_SSH_OPTIONS": f"-F {made.config}"}
                return here(made[0].command(sys.executable, str(driver)), {**env, **own})

            yield drive
            assert made.idle(), "nothing is left"


class TestSlurm(LauncherKit):
    """From a batch script, on two nodes."""

    np: ClassVar = 3
    options: ClassVar = {"launcher": "slurm"}

    @pytest.fixture(scope="class")
    @classmethod
    def drive(cls, slurm_cluster: Cluster) -> Drive:
        def drive(driver: Path, env: Mapping[str, str]) -> str:
            batch, out = driver.with_name("batch.sh"), driver.with_name("out")
            command = shlex.join([sys.executable, str(driver)])
            batch.write_text(
                f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2 --time=5\n{command}\necho"
                " ended $?\n"
            )
            slurm_cluster.run(["sbatch", "--output", str(out), str(batch)], **env)
            assert wait_until(lambda: out.exists() and "ended " in out.read_text(), 150), (
                "the job does not end"
            )
            assert out.read_text().endswith("ended 0\n"), out.read_text()
            return out.read_text()

        return drive


def test_the_kit_runs_every_launcher() -> None:
    kits = [
        each
        for each in globals().values()
        if isinstance(each, type) and issubclass(each, LauncherKit)
    ]
    here = [kit.__name__.removeprefix("Test").lower() for kit in kits if kit is not LauncherKit]
    assert sorted([*here, "spark"]) == sorted(registry.names("launcher"))
