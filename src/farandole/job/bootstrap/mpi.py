"""Processes of mpirun: Open MPI, and Hydra, which MPICH and Intel MPI use."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import itertools
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from farandole.errors import RendezvousError, SettingsError
from farandole.job.bootstrap import local_barrier
from farandole.job.bootstrap.contract import PMI, integers
from farandole.job.bootstrap.siblings import NO_SIBLINGS, Siblings
from farandole.job.config import Placement
from farandole.job.report import reporter

_OPEN_MPI = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_MARKS = ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "I_MPI_HYDRA_UUID", "HYDI_CONTROL_FD")
DAEMONS = (
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "orted",
    "prterun",
    "prted",
    "hydra_pmi_proxy",
)

# A watchdog that kills its parent unless stdin closes in time. Arguments: the seconds, and the
# message to print then.
_WATCH = """
import os, select, sys
parent = os.getppid()
if not select.select([0], [], [], float(sys.argv[1]))[0] and os.getppid() == parent:
    sys.stderr.write(sys.argv[2])
    sys.stderr.flush()
    os.kill(parent, 9)
"""


class MpiBootstrap:
    name: ClassVar[str] = "mpi"
    absence_hint: ClassVar[str] = ""

    def __init__(self) -> None:
        self._world: Any = None  # mpi4py's COMM_WORLD, once it has been used

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        who = integers(env, _OPEN_MPI) or integers(env, _HYDRA)
        if who is None:
            return None
        rank, size, local_rank, local_size = who
        hostname = env.get("PMIX_HOSTNAME") or env.get("PMI_HOSTNAME") or socket.gethostname()
        return Placement(
            rank=rank, size=size, local_rank=local_rank, local_size=local_size, hostname=hostname
        )

    def siblings(self, placement: Placement, env: Mapping[str, str]) -> Siblings:
        if placement.local_size < placement.size:
            return NO_SIBLINGS  # the ranks of each host are unknown
        number = _OPEN_MPI[0] if _OPEN_MPI[0] in env else _HYDRA[0]
        return Siblings(env, range(placement.size), number, _MARKS, DAEMONS)

    def starter(self, env: Mapping[str, str]) -> int:
        return daemon()

    def broadcast(
        self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Siblings
    ) -> str:
        # Name ended ranks here: MPI and PMI wait for them, and MPI does so silently.
        names = _OPEN_MPI if _OPEN_MPI[0] in os.environ else _HYDRA
        number = names[0] if local_barrier.is_only_host(placement) else names[2]
        neighbours = Siblings(os.environ, range(placement.local_size), number, _MARKS, DAEMONS)
        try:
            local_barrier.wait(placement, timeout, neighbours)
        except RendezvousError:
            from farandole.job.bootstrap import pmi

            # Hydra would keep running the ranks that wait for this one, and those that never
            # arrive.
            pmi.abort_at_exit()
            raise
        # PMI would be faster, but a process can use it only once, and the program may use MPI
        # later.
        trouble = "mpi4py is not installed here"
        if importlib.util.find_spec("mpi4py") is not None:
            with watched(placement, timeout):
                world, trouble = world_of(placement)
                if world is not None:
                    self._world = world
                    found: str = world.bcast(None if placement.rank else text())
                    return found
        if PMI in os.environ:
            from farandole.job.bootstrap import pmi

            return pmi.broadcast(placement, text, timeout, siblings)
        raise SettingsError(
            f"mpirun started this process as rank {placement.rank} of {placement.size}, but its"
            f" ranks cannot find each other: {trouble}, and this mpirun does not offer PMI-1"
            " (PMI_FD). Install mpi4py for the MPI of this mpirun (pip install mpi4py), or start"
            " the job with: farandole run --launcher mpi"
        )

    @property
    def ends_together(self) -> bool:
        return self._world is not None

    def on_assigned(self) -> None:
        """Take no action."""

    def abort(self) -> None:
        if self._world is not None:
            self._world.Abort(1)


class MpiPartBootstrap(MpiBootstrap):
    """The mpirun processes of an mpi4py communicator as a separate job, unknown to the others."""

    def __init__(self, comm: Any) -> None:
        self._world = comm

    def siblings(self, placement: Placement, env: Mapping[str, str]) -> Siblings:
        return NO_SIBLINGS  # the environment has mpirun's numbers, not those in ``comm``

    def broadcast(
        self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Siblings
    ) -> str:
        found: str = self._world.bcast(None if placement.rank else text())
        return found


def part_of(comm: Any, placement: Placement, timeout: float) -> tuple[MpiPartBootstrap, Placement]:
    """Return the job of ``comm``, a communicator or a list of mpirun's ranks, and this process's
    placement in it.

    ``placement`` is this process's placement in mpirun's job. Collective over ``comm``; ends this
    process if other processes do not arrive in time.

    Raises ValueError for a list without this process, and SettingsError without mpi4py.
    """
    text = (
        f"farandole: init(comm=...) of process {placement.rank} of mpirun took longer than"
        f" {timeout:g} s: MPI waits for all processes of comm, and for all of mpirun's processes"
        " to initialize MPI. Processes outside comm must initialize it, too (from mpi4py import"
        " MPI); if starting takes longer, raise --start-timeout (FARANDOLE_START_TIMEOUT).\n"
    )
    with _ending(timeout, text):
        return _part_of(comm, placement)


def _part_of(comm: Any, placement: Placement) -> tuple[MpiPartBootstrap, Placement]:
    """Implement ``part_of`` without its timeout."""
    try:
        MPI = library()
    except (ImportError, RuntimeError) as error:
        raise SettingsError(
            "init(comm=...): a job of some of mpirun's processes needs mpi4py, which cannot be"
            f" used ({error})"
        ) from error
    if not hasattr(comm, "Get_group"):
        ranks = list(comm)
        if (
            placement.rank not in ranks
            or len({*ranks}) < len(ranks)
            or not {*ranks} <= {*range(placement.size)}
        ):
            raise ValueError(
                f"init(comm={ranks}): this process is rank {placement.rank} of {placement.size};"
                " the list must contain this rank, and each rank once. Call init(comm=...) only"
                " on ranks in the list"
            )
        comm = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.Get_group().Incl(ranks))
    near = comm.Split_type(MPI.COMM_TYPE_SHARED)
    return MpiPartBootstrap(comm), placement.replace(
        rank=comm.Get_rank(),
        size=comm.Get_size(),
        local_rank=near.Get_rank(),
        local_size=near.Get_size(),
    )


def of_one(command: Sequence[str]) -> bool:
    """Return whether this is the command line of an mpirun with one process, judging by the
    words before its first value.
    """
    if os.path.basename(command[0]) not in DAEMONS or ":" in command:
        return False
    options = list(itertools.takewhile(lambda word: word.startswith("-"), command[1:]))
    return options[-1:] in (["-n"], ["-np"]) and command[1 + len(options) :][:1] == ["1"]


def daemon() -> int:
    """Return the pid of the mpirun process above this one on this host; 0 if it is not visible."""
    return Siblings({}, (0,), "", (), DAEMONS).daemon


@contextlib.contextmanager
def watched(placement: Placement, timeout: float) -> Iterator[None]:
    """End this process if the block takes longer than ``timeout`` seconds.

    MPI waits forever for ranks of other hosts and blocks all other threads meanwhile. Only one rank
    of each host is watched.
    """
    if placement.local_rank or placement.local_size == placement.size:
        yield
        return
    text = (
        f"farandole: rank {placement.rank}: all ranks of {placement.hostname} are in init(), but"
        f" ranks of other hosts did not reach it within {timeout:g} s. Every rank must call"
        " init(); if starting takes longer, raise --start-timeout (FARANDOLE_START_TIMEOUT).\n"
    )
    with _ending(timeout, text):
        yield


@contextlib.contextmanager
def _ending(timeout: float, text: str) -> Iterator[None]:
    """Print ``text`` and end this process if the block takes longer than ``timeout`` seconds."""
    import subprocess

    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCH, str(timeout), text],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ):
        yield


def world_of(placement: Placement) -> tuple[Any, str]:
    """Return mpi4py's COMM_WORLD, or None and the reason why it cannot be used."""
    try:
        MPI = library()
    except (ImportError, RuntimeError) as error:
        return None, f"mpi4py cannot be used ({error})"
    world = MPI.COMM_WORLD
    if world.Get_size() == placement.size and world.Get_rank() == placement.rank:
        return world, ""
    version = MPI.Get_library_version().split(",")[0].splitlines()[0].strip("\0 ")
    return (
        None,
        (
            f"mpi4py, with {version}, is rank {world.Get_rank()} of {world.Get_size()}: it is"
            " built for a different MPI than this mpirun"
        ),
    )


def library() -> Any:
    """Return mpi4py's MPI, initialised.

    Programs for Horovod set ``mpi4py.rc.initialize = False`` because Horovod initialises MPI.
    """
    import mpi4py

    asked, mpi4py.rc.initialize = mpi4py.rc.initialize, True
    try:
        from mpi4py import MPI
    finally:
        mpi4py.rc.initialize = asked
    if not MPI.Is_initialized():  # it was imported earlier without initialisation
        MPI.Init_thread()
        atexit.register(_finalize, MPI)
    return MPI


def _finalize(MPI: Any) -> None:
    """Finalize MPI at the end of a successful process.

    A failed process would wait here for ranks that wait for it.
    """
    if not reporter.failed() and not MPI.Is_finalized():
        MPI.Finalize()
