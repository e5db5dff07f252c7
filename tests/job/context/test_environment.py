"""The job of a process, from its environment."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.errors import SettingsError
from farandole.job.config import Placement
from farandole.job.context.environment import check_rank, lost_placement
from tests.job.launch.tools import Marked, marked
from tests.kits.messages import mentioning, mentions

RANK = "PATH=/bin\0FARANDOLE_STORE=127.0.0.1:1\0FARANDOLE_RANK=1\0FARANDOLE_SIZE=3\0"
MPI = "OMPI_COMM_WORLD_RANK=1\0OMPI_COMM_WORLD_SIZE=2\0OMPI_COMM_WORLD_LOCAL_RANK=1\0OMPI_COMM_WORLD_LOCAL_SIZE=2\0"
SLURM = (
    "SLURM_PROCID=1\0SLURM_STEP_NUM_TASKS=4\0SLURM_LOCALID=0\0SLURM_NODEID=0\0SLURM_STEP_ID=0\0"
    "SLURM_STEP_TASKS_PER_NODE=4\0"
)


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
        (MPI, "", "this process is rank 1 of 2, but .* \\(OMPI_"),
        ("", SLURM, "process 7, above this one, is rank 1 of 4, but .* \\(SLURM_"),
        ("", SLURM.replace("=4", "=1"), ""),
        ("", SLURM.replace("SLURM_STEP_ID", "NO"), ""),  # a batch script
        ("", MPI.replace("SIZE=2", "SIZE=1"), ""),
    ],
)
def test_a_rank_that_lost_its_variables(
    tmp_path: Path, own: str | None, above: str | None, expected: str
) -> None:
    written(tmp_path, os.getpid(), 7, own)
    written(tmp_path, 7, 6, above)  # the one above that has ended
    assert lost_placement({"PMI_RANK": "0", "PMI_SIZE": "1"}, tmp_path) == ""
    found = lost_placement({}, tmp_path)
    assert bool(found) == bool(expected)
    assert re.match(expected, found)
    assert lost_placement({"FARANDOLE_SIZE": "1"}, tmp_path) == ""
    # mpirun -np 1 within a rank
    assert lost_placement({"OMPI_COMM_WORLD_RANK": "0"}, tmp_path) == ""


def test_a_rank_that_lost_its_variables_reports_it(jobs: Marked) -> None:
    code = "import farandole.numpy as hvd; hvd.init(); print(hvd.size())"
    path = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"
    done = jobs.run("run", "-np", "2", "env", "-i", path, sys.executable, "-c", code)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (
        0,
        ["[0]<stdout>:1", "[1]<stdout>:1"],
    )
    assert (
        len(re.findall(r"process \d+, above this one, starts a job's ranks, but", done.stderr)) == 2
    )


def test_a_clean_environment_right_below_the_daemon_of_a_cluster(tmp_path: Path) -> None:
    """As with ``srun apptainer exec --cleanenv`` or ``mpirun env -i``."""
    written(tmp_path, os.getpid(), 7, "")
    written(tmp_path, 7, 6, None)
    (tmp_path / "7" / "comm").write_text("slurmstepd\n")
    assert re.match(
        r"process 7 \(slurmstepd\), above this one, starts ranks, but .* \(SLURM_\*\)",
        lost_placement({}, tmp_path),
    )


@pytest.mark.parametrize(
    ("command", "alone"),
    [
        ("mpirun -np 1 env -i python", True),
        ("/opt/bin/mpirun --allow-run-as-root -n 1 env -i python", True),
        ("mpirun -np 2 env -i python", False),
        ("mpirun -np 1 env -i python : -np 1 env -i python", False),
        ("mpirun env -i nice -n 1 python", False),
        ("mpirun", False),
    ],
)
def test_an_mpirun_of_one_process_loses_no_rank(command: str, alone: bool, tmp_path: Path) -> None:
    written(tmp_path, os.getpid(), 7, "")
    written(tmp_path, 7, 6, None)
    (tmp_path / "7" / "comm").write_text("hydra_pmi_proxy\n")
    (tmp_path / "7" / "cmdline").write_text("hydra_pmi_proxy\0--control-port\0a:1\0")
    written(tmp_path, 6, 1, None)
    (tmp_path / "6" / "cmdline").write_text(command.replace(" ", "\0") + "\0")
    assert (lost_placement({}, tmp_path) == "") == alone


def test_a_launcher_without_placements() -> None:
    """Flux, MPICH's gforker. Within a step of Slurm, PMI gives no placement, and Slurm's variables
    do.
    """
    pmi = {"PMI_RANK": "1", "PMI_SIZE": "3"}
    assert re.match(
        r"this process was started as rank 1 of 3 \(PMI_RANK, PMI_SIZE\)", lost_placement(pmi)
    )
    assert lost_placement({**pmi, "FARANDOLE_SIZE": "1"}) == ""
    slurm = dict(text.split("=") for text in SLURM.split("\0") if text)
    assert lost_placement({**pmi, **slurm, "SLURM_STEP_NUM_TASKS": "1"}) == ""


def test_a_launcher_that_does_not_say_where_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or no process here can connect to that place."""
    torch = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1"}
    for own in (torch, {**torch, "SLURM_PROCID": "0"}):  # also in a batch script of Slurm
        assert re.match(
            r"this process was started as rank 1 of 3 \(RANK, WORLD_SIZE\).* \(no MASTER_PORT\)",
            lost_placement(own),
        )
    assert (
        lost_placement({**torch, "HOROVOD_SIZE": "1"})
        == lost_placement({**torch, "RANK": "0", "WORLD_SIZE": "1"})
        == ""
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert mentions(lost_placement({**torch, "MASTER_PORT": "29500"}), "PyTorch")


@pytest.mark.parametrize(("rank", "size"), [("2", "1"), ("2", "2"), ("1", "0"), ("-1", "2")])
def test_a_rank_that_its_job_has_no_place_for(rank: str, size: str) -> None:
    """The rank would train alone."""
    env = {"RANK": rank, "WORLD_SIZE": size}
    with pytest.raises(
        SettingsError, match=mentioning(f"RANK={rank}", f"WORLD_SIZE={size}", "FARANDOLE_SIZE=1")
    ):
        lost_placement(env)
    assert lost_placement({**env, "FARANDOLE_SIZE": "1"}) == ""
    with pytest.raises(
        SettingsError,
        match=mentioning("rank 2", "FARANDOLE_RANK", "HOROVOD_RANK"),
    ):
        check_rank(Placement(rank=2, size=2))


@pytest.mark.parametrize(
    ("rank", "size"), [("0", "1"), ("-1", "1"), ("-1", "-1"), ("0", "0"), ("first", "1"), ("1", "")]
)
def test_incomplete_torchrun_variables_are_no_lost_job(
    rank: str, size: str, tmp_path: Path
) -> None:
    assert lost_placement({"RANK": rank, "WORLD_SIZE": size}, tmp_path) == ""


def test_a_clean_environment_below_a_rank_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    written(tmp_path, os.getpid(), 7, "")
    written(tmp_path, 7, 6, "RANK=1\0WORLD_SIZE=3\0MASTER_ADDR=a\0MASTER_PORT=29500\0")
    assert re.match(
        r"process 7, above this one, is rank 1 of 3, but .* \(RANK, WORLD_SIZE, MASTER_\*\)",
        lost_placement({}, tmp_path),
    )
