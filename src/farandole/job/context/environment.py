"""The job according to this process's environment, and leftovers of an outer job there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from farandole.errors import SettingsError
from farandole.job.config import Connection, Placement
from farandole.job.config.fields import variables
from farandole.job.config.output_files import FILES, of_outer_job
from farandole.job.config.rank_variables import ORIGIN, PROCESS, STARTERS
from farandole.job.config.torchrun import TORCH

if TYPE_CHECKING:
    from farandole.job.bootstrap import ClusterJob


def forget_outer_job(env: MutableMapping[str, str]) -> None:
    """Remove the outer job's variables if mpirun, srun or torchrun started this process within a
    rank.

    The process inherits that rank's variables, but belongs to a different job.
    """
    if ORIGIN not in env or not any(name in env for name in STARTERS):
        return
    from farandole.job.bootstrap.origin import origin

    if {*filter(None, origin(env).split(","))} <= {*env[ORIGIN].split(",")}:
        return  # or a container hides some of the origin
    torchruns = "TORCHELASTIC_RUN_ID" in env
    own = (FILES, ORIGIN, PROCESS, *variables(Placement, Connection), *(() if torchruns else TORCH))
    for name in (*of_outer_job(env), *own):
        env.pop(name, None)


def has_placement(env: Mapping[str, str]) -> bool:
    """Return whether a launcher, or the user, has set this process's placement."""
    return any(env.get(name) for name in ("FARANDOLE_STORE", *variables(Placement)))


def find_cluster(env: Mapping[str, str]) -> ClusterJob | None:
    """Return the cluster job that this process belongs to; None if no known launcher started it."""
    from farandole.job import bootstrap  # imported here because jobs with a driver do not need it

    return bootstrap.find(env)


def lost_placement(own: Mapping[str, str], proc: Path = Path("/proc")) -> str:
    """Return a warning for a process without a placement that seems to belong to a job; else "".

    The process may be a rank, or a descendant of a rank, whose variables were removed (``sudo``,
    ``env -i``, a container with a clean environment) or are incomplete. Raises SettingsError if
    they contradict each other.
    """
    if has_placement(own):
        return ""
    from farandole.job import bootstrap  # imported here, as in ``find_cluster``

    bootstrap.check(own)
    if who := bootstrap.incomplete_placement(own):
        return _UNKNOWN.format(*who)
    if any(name in own for name in STARTERS):
        return ""
    for pid in _ancestors(proc):
        env = _environment(proc / f"{pid}/environ")
        which = "this process" if pid == os.getpid() else f"process {pid}, above this one,"
        if "FARANDOLE_STORE" in env and env.get("FARANDOLE_SIZE", "1") != "1":
            what = f"is rank {env.get('FARANDOLE_RANK')} of {env['FARANDOLE_SIZE']}"
            return _LOST.format(which, what, "FARANDOLE_*")
        if started := bootstrap.find(env):
            what = f"is rank {started.placement.rank} of {started.placement.size}"
            return _LOST.format(which, what, _NAMES[started.bootstrap.name])
        # it and its descendants are outside the job
        if any(name in env for name in STARTERS):
            return ""
        if b"reaper.main()" in _bytes(proc / f"{pid}/cmdline"):
            return _LOST.format(which, "starts a job's ranks", "FARANDOLE_*")
        name = _bytes(proc / f"{pid}/comm").decode("latin-1").strip()
        if cluster := bootstrap.DAEMONS.get(name):
            if any(
                bootstrap.mpi.of_one(_words(proc / f"{above}/cmdline"))
                for above in _ancestors(proc, pid)
            ):
                return ""
            return _LOST.format(
                f"process {pid} ({name}), above this one,", "starts ranks", _NAMES[cluster]
            )
    return ""


def check_rank(placement: Placement) -> None:
    """Raise SettingsError if the rank is not below the job's size."""
    if not 0 <= placement.rank < placement.size:
        raise SettingsError(
            f"rank {placement.rank} (FARANDOLE_RANK or HOROVOD_RANK) must be below the number of"
            f" ranks, {placement.size} (FARANDOLE_SIZE or HOROVOD_SIZE): set both, or use"
            " farandole run"
        )


_NAMES = {
    "mpi": "OMPI_*, PMI*",
    "slurm": "SLURM_*",
    "torchrun": "RANK, WORLD_SIZE, TORCHELASTIC_*",
    "torch": "RANK, WORLD_SIZE, MASTER_*",
}
_LOST = (
    "{} {}, but the environment of this process lacks the variables of its rank ({}): it trains"
    " alone, as rank 0 of 1. Pass them on (sudo -E, a container's --env), or set FARANDOLE_SIZE=1"
    " to train alone"
)
_UNKNOWN = (
    "this process was started as rank {} of {} ({}), but its launcher does not provide {}: it"
    " trains alone, as rank 0 of 1. Start the job with farandole run, Hydra's or Open MPI's"
    " mpirun, srun or torchrun, or set FARANDOLE_SIZE=1 to train alone"
)


def _ancestors(proc: Path, pid: int = 0) -> Iterator[int]:
    """Yield process ``pid`` (0: this one) and its visible ancestors."""
    pid = pid or os.getpid()
    while pid > 1:
        yield pid
        above = _bytes(proc / f"{pid}/stat").rpartition(b")")[2].split()
        pid = int(above[1]) if above else 0


def _environment(file: Path) -> dict[str, str]:
    """Return the environment with which a process was started."""
    return dict(text.decode("latin-1").partition("=")[::2] for text in _bytes(file).split(b"\0"))


def _words(file: Path) -> list[str]:
    return _bytes(file).decode("latin-1").split("\0")


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # another user's process, or it has ended
        return b""
