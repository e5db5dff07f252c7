"""``farandole run --launcher mpi``: a real Open MPI, and the options of each mpirun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.errors import SettingsError
from farandole.job.config import Placement
from farandole.job.launch.contract import JobRequest
from farandole.job.launch.launchers import mpi
from tests.kits.messages import mentioning, mentions

OPEN_MPI, HYDRA = "mpirun (Open MPI) 5.0.11\n", "HYDRA build details:\n Version: 5.0"
INTEL = "Intel(R) MPI Library for Linux"
PROGRAM = """
import os, sys
import numpy as np
import farandole.numpy as hvd

assert not [name for name in os.environ if name.startswith(("PRTE_", "PMI_", "FARANDOLE_AGENT"))]
hvd.init()
taken = os.environ.get("OMPI_COMM_WORLD_RANK", str(hvd.rank()))  # Open MPI's: the rank has its agent's place
assert taken == str(hvd.rank())
total = hvd.allreduce(np.ones(2, np.float32), op=hvd.Sum)
print(hvd.rank(), hvd.size(), hvd.local_rank(), total.tolist(), os.environ["CUSTOM"], os.getcwd(), flush=True)
hvd.allreduce(np.ones(2, np.float32))
if hvd.rank() == 1:
    raise ValueError("no more data")
hvd.allreduce(np.ones(2, np.float32))
"""


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farandole", "run", *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_an_encrypted_job_runs_and_its_failure_is_explained(tmp_path: Path) -> None:
    if not Path(sys.executable).with_name("mpirun").exists():
        pytest.skip("no mpirun is installed beside this Python")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = run(
        "-np",
        "2",
        "--launcher",
        "mpi",
        "--tls",
        sys.executable,
        str(script),
        CUSTOM="of the driver",
        PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    )
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}]<stdout>:{rank} 2 {rank} [2.0, 2.0] of the driver {os.getcwd()}"
        for rank in (0, 1)
    ], done.stderr
    assert done.returncode == 1
    assert "Rank 1 on " in done.stderr
    assert "ValueError: no more data" in done.stderr
    assert mentions(done.stderr, "Rank 0", "consequence")


def test_ranks_may_call_mpi_themselves(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    if not Path(sys.executable).with_name("mpirun").exists():
        pytest.skip("no mpirun is installed beside this Python")
    script = tmp_path / "program.py"
    script.write_text(
        "import farandole.numpy as hvd\nhvd.init()\nassert hvd.mpi_threads_supported()\n"
        "import mpi4py\nmpi4py.rc.initialize = False\nfrom mpi4py import MPI\n"
        "print(MPI.COMM_WORLD.allgather(hvd.rank()), flush=True)\n"
    )
    done = run(
        "-np",
        "2",
        "--launcher",
        "mpi",
        sys.executable,
        str(script),
        PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0]<stdout>:[0, 1]",
        "[1]<stdout>:[0, 1]",
    ], done.stderr


def test_ranks_started_below_mpirun_are_not_its_ranks(tmp_path: Path) -> None:
    """Ranks that took the place of mpirun's process would be killed by MPI with SIGSEGV, or wait
    forever.
    """
    pytest.importorskip("mpi4py")
    beside = Path(sys.executable).with_name("mpirun")
    if not beside.exists():
        pytest.skip("no mpirun is installed beside this Python")
    script = tmp_path / "program.py"
    script.write_text(
        "from mpi4py import MPI\nimport farandole.numpy as hvd\nhvd.init()\n"
        "print(hvd.rank(), hvd.size(), MPI.COMM_WORLD.size, flush=True)\n"
    )
    outer = [str(beside), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]
    done = subprocess.run(
        [*outer, sys.executable, "-m", "farandole", "run", "-np", "2", sys.executable, str(script)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (
        sorted(done.stdout.splitlines()) == ["[0]<stdout>:0 2 1"] * 2 + ["[1]<stdout>:1 2 1"] * 2
    ), done.stderr


@pytest.mark.parametrize(
    "ends", [["false"], ["sh", "-c", "echo there are not enough slots >&2; exit 3"]], ids=str
)
def test_a_failed_mpirun_reports_the_reason(ends: list[str], tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    body = "exit 1" if ends == ["false"] else ends[2]
    mpirun.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "{OPEN_MPI.strip()}" && exit 0\n{body}\n'
    )
    mpirun.chmod(0o755)
    done = run(
        "-np", "2", "--launcher", "mpi", "true", PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    )
    assert done.returncode != 0
    assert mentions(done.stderr, str(mpirun), f"code {1 if ends == ['false'] else 3}")
    assert ends == ["false"] or mentions(done.stderr, "slots")
    assert "Traceback" not in done.stderr


def test_an_mpirun_that_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI's, without HOME."""
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'Unable to get the user home directory' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(
        SettingsError,
        match=mentioning("--version", "code 3"),
    ):
        mpi.MpiLauncher().allocate(JobRequest(2))


class TestOptions:
    def test_open_mpi_carries_the_variables_by_name_alone(self) -> None:
        env = {
            "PATH": "/bin",
            "HOME": "/root",
            "FARANDOLE_AGENT": "secret",
            "FARANDOLE_RANK": "7",
            "a-b": "x",
        }
        words = mpi.options(OPEN_MPI, JobRequest(4), env)
        assert words[:4] == ["-np", "4", "--bind-to", "none"]
        assert [words[at + 1] for at, word in enumerate(words) if word == "-x"] == [
            "FARANDOLE_AGENT",
            "PATH",
        ]
        assert not any("secret" in word for word in words)

    def test_open_mpi_is_given_the_hosts_or_finds_them(self) -> None:
        words = mpi.options(OPEN_MPI, JobRequest(4, hosts="a:2,b:2"), {})
        assert words[words.index("--host") + 1] == "a:2,b:2"
        assert "--oversubscribe" not in words
        assert "--oversubscribe" in mpi.options(OPEN_MPI, JobRequest(4), {})
        assert "--oversubscribe" not in mpi.options(OPEN_MPI, JobRequest(4), {"SLURM_JOB_ID": "1"})

    @pytest.mark.parametrize(
        ("version", "hosts"),
        [(HYDRA, ["-hosts", "b:1,a:2"]), (INTEL, ["-hosts", "b,a,a", "-ppn", "1"])],
    )
    def test_hydra(self, version: str, hosts: list[str]) -> None:
        """Intel MPI ignores the numbers: it would fill the first host."""
        assert mpi.options(version, JobRequest(3), {}) == ["-n", "3"]
        assert mpi.options(version, JobRequest(3, hosts="b:1,a:2"), {}) == ["-n", "3", *hosts]

    def test_another_mpirun_is_refused(self) -> None:
        with pytest.raises(SettingsError, match=mentioning("mpirun --version", "'LAM 7'")):
            mpi.options("LAM 7", JobRequest(4), {})

    def test_more_ranks_than_places(self) -> None:
        with pytest.raises(SettingsError, match=mentioning("(4)", "slots", "(3)")):
            mpi.MpiLauncher().allocate(JobRequest(4, hosts="a:2,b:1"))


def test_an_ipv6_address_is_none_of_mpiruns_hosts() -> None:
    request = JobRequest(3, hosts="a:2,[fd00::1]:1")
    with pytest.raises(SettingsError, match=mentioning("IPv6", "fd00::1")):
        mpi.MpiLauncher().allocate(request)


def test_it_knows_its_agents_and_its_ranks() -> None:
    agent = {
        "PMI_RANK": "1",
        "PMI_SIZE": "2",
        "MPI_LOCALRANKID": "0",
        "MPI_LOCALNRANKS": "1",
        "PMI_HOSTNAME": "b",
    }
    launcher = mpi.MpiLauncher()
    assert launcher.placement(agent) == Placement(rank=1, size=2, hostname="b")
    assert launcher.placement({**agent, "FARANDOLE_RANK": "5"}) == Placement(rank=5)
    assert launcher.placement({}) is None
