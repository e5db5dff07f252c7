"""``mpirun python train.py`` without a command of Farandole: a real Open MPI, and the errors if it
cannot work.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from farandole.errors import SettingsError
from farandole.job.bootstrap import mpi
from farandole.job.bootstrap.siblings import NO_SIBLINGS
from farandole.job.config import Placement
from farandole.job.launch import reaper
from tests.job.bootstrap import tools
from tests.job.launch.tools import wait_until
from tests.kits.hosts import Hosts
from tests.kits.messages import mentions
from tests.kits.patience import PATIENT

BESIDE = Path(sys.executable).parent / "mpirun"
MPIRUN = [str(BESIDE), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]

PARTS = """
import sys
import numpy as np
from mpi4py import MPI
import farandole.numpy as hvd

world = MPI.COMM_WORLD
comm = {"split": lambda: world.Split(color=int(world.rank == 3), key=world.rank),
        "backwards": lambda: world.Split(color=0, key=-world.rank), "list": lambda: [3, 0]}[sys.argv[1]]()
among = sys.argv[1] != "list" or world.rank in comm
for given in (comm, comm, None) if among else ():  # after the first time, it knows who it is
    hvd.init(comm=given)
    mine = np.array([world.rank])
    who, total = hvd.allgather(mine).tolist(), hvd.allreduce(mine, op=hvd.Sum).item()
    facts = hvd.rank(), hvd.size(), who, hvd.local_rank(), hvd.local_size(), total
    assert hvd.mpi_threads_supported()
    hvd.shutdown()
if among:
    sys.stdout.write(f"{world.rank}: {facts}\\n")
world.Barrier()
"""


@pytest.fixture
def open_mpi() -> None:
    pytest.importorskip("mpi4py")
    if not BESIDE.exists():
        pytest.skip("no mpirun is installed beside this Python")


@pytest.mark.usefixtures("open_mpi")
class TestOpenMpi:
    def test_a_job(self, tmp_path: Path) -> None:
        tools.check_success(tools.run(MPIRUN, tmp_path, TMPDIR=str(tmp_path)), 2, "mpi")

    def test_a_failed_rank_ends_the_job_with_its_cause(self, tmp_path: Path) -> None:
        tools.check_failure(
            tools.run(MPIRUN, tmp_path, "fails", TMPDIR=str(tmp_path), FARANDOLE_TLS="1")
        )

    def test_rank_0_serves_parameters(self, tmp_path: Path) -> None:
        own = {"TMPDIR": str(tmp_path), "FARANDOLE_SERVERS": "2"}
        tools.check_served(tools.run(MPIRUN, tmp_path, "serves", **own), 2)

    def test_a_run_within_a_rank_starts_a_separate_job(self, tmp_path: Path) -> None:
        """Its processes inherit the variables of that rank; without care each would be a job of one
        rank.
        """
        command = [sys.executable, "-m", "farandole", "run", "-np", "1", *MPIRUN]
        done = tools.run(command, tmp_path, TMPDIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        lines = sorted(line.removeprefix("[0]<stdout>:") for line in done.stdout.splitlines())
        assert lines == tools.lines_of(2, "mpi")

    def test_a_rank_that_ends_before_init_is_named(self, tmp_path: Path) -> None:
        own = {"TMPDIR": str(tmp_path), "FARANDOLE_START_TIMEOUT": "600"}
        done = tools.run(MPIRUN, tmp_path, "without", "1", **own)
        assert done.returncode not in (0, None)
        assert mentions(done.stderr, "RendezvousError", "rank 1", "init()")

    def test_local_ranks_in_another_order(self, tmp_path: Path) -> None:
        """Open MPI's mapping by package numbers local ranks differently from ranks."""
        swap = (
            "export OMPI_COMM_WORLD_LOCAL_RANK=$(($OMPI_COMM_WORLD_SIZE - 1 -"
            ' $OMPI_COMM_WORLD_RANK)); exec "$@"'
        )
        command = [*MPIRUN[:-1], "3", "sh", "-c", swap, "sh"]
        own = {"TMPDIR": str(tmp_path), "FARANDOLE_START_TIMEOUT": "600"}
        done = tools.run(command, tmp_path, "without", "2", **own)
        assert mentions(done.stderr, "RendezvousError", "rank 2", "init()")
        assert not mentions(done.stderr, "RendezvousError", "rank 0")

    def test_ranks_end_when_mpirun_was_killed(self, tmp_path: Path) -> None:
        code = (
            "import os, pathlib, sys, time; import farandole.numpy as hvd; hvd.init();"
            " pathlib.Path(sys.argv[1], str(hvd.rank())).write_text(str(os.getpid()));"
            " time.sleep(1000)"
        )
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(tools.OURS)
        }
        running = subprocess.Popen(
            [*MPIRUN, sys.executable, "-c", code, str(tmp_path)],
            # an mpirun that is killed leaves its own shared memory behind
            env={
                **clean,
                **PATIENT,
                "TMPDIR": str(tmp_path),
                "OMPI_MCA_btl_sm_backing_directory": str(tmp_path),
            },
        )
        places = [tmp_path / "0", tmp_path / "1"]
        assert wait_until(lambda: all(path.exists() and path.read_text() for path in places))
        pids = [int(path.read_text()) for path in places]
        running.kill()
        running.wait()
        assert wait_until(lambda: not {*pids} & {*reaper.processes()})

    @pytest.mark.parametrize(
        ("kind", "says"),
        [
            (
                "split",
                [f"{r}: ({r}, 3, [0, 1, 2], {r}, 3, 3)" for r in (0, 1, 2)]
                + ["3: (0, 1, [3], 0, 1, 3)"],
            ),
            (
                "backwards",
                [f"{rank}: ({3 - rank}, 4, [3, 2, 1, 0], {3 - rank}, 4, 6)" for rank in range(4)],
            ),
            ("list", ["0: (1, 2, [3, 0], 1, 2, 3)", "3: (0, 2, [3, 0], 0, 2, 3)"]),
        ],
    )
    def test_parts_of_its_processes_are_separate_jobs(
        self, kind: str, says: list[str], tmp_path: Path
    ) -> None:
        """The processes of a communicator (also of one process), and of a list; other processes
        continue without a job.
        """
        script = tmp_path / "parts.py"
        script.write_text(PARTS)
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(tools.OURS)
        }
        done = subprocess.run(
            [*MPIRUN[:-1], "4", sys.executable, str(script), kind],
            env={**clean, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (done.returncode, sorted(done.stdout.splitlines())) == (0, says), done.stderr

    def test_a_part_waits_in_mpi_for_uninitialised_processes(self, tmp_path: Path) -> None:
        script = tmp_path / "alone.py"
        script.write_text(
            "import os, signal\nimport farandole.numpy as hvd\n"
            'hvd.init(comm=[1]) if os.environ["OMPI_COMM_WORLD_RANK"] == "1" else signal.pause()\n'
        )
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(tools.OURS)
        }
        done = subprocess.run(
            [*MPIRUN, sys.executable, str(script)],
            env={
                **clean,
                "TMPDIR": str(tmp_path),
                "FARANDOLE_START_TIMEOUT": "2",
                # Open MPI leaves memory of a killed rank
                "OMPI_MCA_btl_sm_backing_directory": str(tmp_path),
            },
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode
        assert mentions(done.stderr, "process 1", "2 s", "MPI")

    @pytest.mark.parametrize(
        "imports", ["", "from mpi4py import MPI"], ids=["imported_later", "imported_before"]
    )
    def test_a_program_may_leave_it_to_horovod_to_initialise_mpi(
        self, imports: str, tmp_path: Path
    ) -> None:
        script = tmp_path / "mixed.py"
        script.write_text(
            f"import mpi4py, sys\nmpi4py.rc.initialize = False\n{imports}\nimport farandole.numpy"
            " as hvd\nhvd.init()\nassert hvd.mpi_threads_supported()\nfrom mpi4py import"
            " MPI\nsys.stdout.write(f'{MPI.COMM_WORLD.allgather(hvd.rank())}\\n')\n"
        )
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(tools.OURS)
        }
        done = subprocess.run(
            [*MPIRUN, sys.executable, str(script)],
            env={**clean, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "[0, 1]\n[0, 1]\n"), done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("open_mpi")
class TestTwoHosts(tools.TwoHosts):
    """Encrypted: only ranks with the variable are, and mpirun passes on only named variables."""

    variables: ClassVar = ["-x", "PYTHONPATH", "-x", "FARANDOLE_TLS"]
    command: ClassVar = [
        *MPIRUN[:2],
        "--bind-to",
        "none",
        *variables,
        "-np",
        "3",
        "--host",
        "a:2,b:1",
    ]
    environment: ClassVar = {"PRTE_MCA_plm_ssh_agent": "{ssh}", "FARANDOLE_TLS": "1"}

    @pytest.mark.parametrize(
        ("rank", "timeout", "says"),
        [
            ("1", 600, "local rank 1 on a ended before init(): no process of it is left."),
            (
                "2",
                8,
                (
                    "rank 0: all ranks of a are in init(), but ranks of other hosts did not reach"
                    " it within 8 s."
                ),
            ),
        ],
    )
    def test_a_rank_that_ends_before_init(
        self, rank: str, timeout: int, says: str, two_hosts: Hosts, tmp_path: Path
    ) -> None:
        given = ["-x", f"FARANDOLE_START_TIMEOUT={timeout}"]
        done = self.run(
            two_hosts, tmp_path, *self.command, *given, *tools.program(tmp_path, "without", rank)
        )
        assert done.returncode not in (0, None)
        assert says in done.stderr, (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("ranks", [[1, 2], [0, 0], [0, 4]], ids=str)
def test_a_list_of_ranks_that_makes_no_sense(ranks: list[int], tmp_path: Path) -> None:
    """In a separate process, because Open MPI leaves its memory behind."""
    pytest.importorskip("mpi4py")
    program = (
        "from farandole.job.config import Placement\nfrom farandole.job.bootstrap import mpi\n"
        f"mpi.part_of({ranks}, Placement(rank=0, size=4), 60.0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OMPI_MCA_btl_sm_backing_directory": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert mentions(done.stderr, f"ValueError: init(comm=[{ranks[0]}, {ranks[1]}])", "rank 0 of 4")


def test_an_error_names_the_cure_without_a_way_to_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PMI_FD", raising=False)
    monkeypatch.setattr(mpi.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError) as caught:
        mpi.MpiBootstrap().broadcast(Placement(rank=1, size=4), lambda: "", 1.0, NO_SIBLINGS)
    assert mentions(str(caught.value), "rank 1", "4", "mpirun")
    assert "farandole run --launcher mpi" in str(caught.value)


def test_mpi4py_that_belongs_to_another_mpi_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every process of it is alone."""
    pytest.importorskip("mpi4py")
    if (
        shutil.which("mpirun", path=str(BESIDE.parent)) is None
        or "OMPI_COMM_WORLD_SIZE" in os.environ
    ):
        pytest.skip("no Open MPI beside this Python")

    class World:
        def Get_size(self) -> int:
            return 1

        def Get_rank(self) -> int:
            return 0

    class Library:
        COMM_WORLD = World()

        @staticmethod
        def Is_initialized() -> bool:
            return True

        @staticmethod
        def Get_library_version() -> str:
            return "Open MPI v5.0, package: x\0"

    monkeypatch.setitem(sys.modules, "mpi4py.MPI", Library)  # type: ignore[arg-type]
    import mpi4py

    monkeypatch.setattr(mpi4py, "MPI", Library, raising=False)
    world, trouble = mpi.world_of(Placement(rank=1, size=4))
    assert world is None
    assert (
        trouble
        == "mpi4py, with Open MPI v5.0, is rank 0 of 1: it is built for a different MPI than this mpirun"
    )
