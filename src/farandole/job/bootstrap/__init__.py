"""Processes that a cluster's own command started: ``mpirun python train.py``, ``srun python
train.py``.

One small class for each cluster says, by the environment, whether this is one of its processes, and
who. Such a job has no driver: its ranks agree on a store, which lives in rank 0 until all others
have left.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from farandole.errors import SettingsError
from farandole.job.bootstrap import mpi, slurm
from farandole.job.bootstrap.mpi import Mpi
from farandole.job.bootstrap.siblings import Siblings
from farandole.job.bootstrap.slurm import Slurm
from farandole.job.bootstrap.torchrun import WHERE, WHO, Torchrun, TorchVariables
from farandole.job.bootstrap.variables import numbers
from farandole.job.config import Connection, Placement, Settings

__all__ = [
    "CLUSTERS",
    "DAEMONS",
    "Cluster",
    "ClusterJob",
    "check",
    "find",
    "half_told",
    "leave",
    "origin",
]


class Cluster(Protocol):
    """A way to start processes, by which they can tell each other one text."""

    name: ClassVar[str]
    otherwise: ClassVar[str]
    """What to add where others do not come: why it waits for them, and what ends that; or ""."""

    @property
    def ends_together(self) -> bool:
        """Does a process wait at its end until the others end (MPI_Finalize)?"""

    def surroundings(self, env: Mapping[str, str]) -> Placement | None:
        """Who this process is, as far as its environment says; None if this cluster did not start
        it.
        """

    def siblings(self, placement: Placement, env: Mapping[str, str]) -> Siblings:
        """The ranks on this host, as far as the environment tells which they are."""

    def broadcast(
        self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Siblings
    ) -> str:
        """Rank 0's ``text()``, on every rank, and for nobody else to read. Collective.

        Raises SettingsError if the ranks have no such way here; RendezvousError after ``timeout``
        seconds, or when one of ``siblings`` that is needed for it has ended.
        """

    def settled(self) -> None:
        """On rank 0, when all ranks have been told, before any of them returns from ``join``."""

    def abort(self) -> None:
        """End all processes of the job. Called only where they end together."""


# Later ones start the processes of earlier ones: torchrun is a task of srun, or a rank of mpirun,
# on each host; mpirun in an allocation of Slurm starts its daemons with srun.
_VARIABLES = TorchVariables()
CLUSTERS: tuple[Cluster, ...] = (Torchrun(), Mpi(), Slurm(), _VARIABLES)


# Programs that start processes on a host, and for whom.
DAEMONS = {**dict.fromkeys(mpi.DAEMONS, Mpi.name), slurm.DAEMON: Slurm.name}


class ClusterJob(NamedTuple):
    """The cluster that started this process."""

    cluster: Cluster
    placement: Placement

    def join(self, settings: Settings) -> tuple[Placement, Connection]:
        """Agree with the other ranks on a store. Collective. Who this process is, now with all that
        only the other ranks know; and how it reaches the store, for which it holds a connection
        until ``leave``.
        """
        from farandole.job.bootstrap import serverless  # here, so that other jobs do not pay for it

        return serverless.join(self.cluster, self.placement, settings)

    def among(self, comm: Any, settings: Settings) -> ClusterJob:
        """The job of a part of mpirun's processes: those of ``comm``, who call this. Raises
        ValueError elsewhere.
        """
        if not isinstance(self.cluster, Mpi):
            raise ValueError(
                f"init(comm=...): {self.cluster.name} has started these {self.placement.size}"
                " processes, and a part of them can be a job of its own only by mpirun; use"
                " init(process_sets=[ProcessSet(ranks)])"
            )
        return ClusterJob(*mpi.part_of(comm, self.placement, settings.start_timeout))


def find(env: Mapping[str, str]) -> ClusterJob | None:
    """The cluster that started this process together with others; None if it stands alone."""
    found = [
        ClusterJob(cluster, place)
        for cluster in CLUSTERS
        if (place := cluster.surroundings(env)) is not None
    ]
    if not found:
        return None
    first, last = found[0], found[-1]
    # Programs of mpirun and srun export torch.distributed's variables, of the same number of ranks.
    # Those of more ranks are of a launcher (deepspeed) that is a rank itself.
    if last.cluster is _VARIABLES and last.placement.size > first.placement.size:
        first = last
    return first if first.placement.size > 1 else None


def half_told(env: Mapping[str, str]) -> tuple[int, int, str, str] | None:
    """Rank, size, the variables that tell them, and what is missing, where a launcher tells too
    little for a cluster here to make a job of that: PMI-1 alone (Flux, MPICH's gforker), or
    torch.distributed's variables without PyTorch or a place to meet.
    """
    rank, size = numbers(env, ("PMI_RANK", "PMI_SIZE")) or (0, 1)
    if size > 1 and not any(cluster.surroundings(env) for cluster in CLUSTERS):
        return rank, size, "PMI_RANK, PMI_SIZE", "who is on which host (no MPI_LOCALRANKID)"
    rank, size = numbers(env, WHO) or (0, 1)
    if size > 1 and any(name in env for name in WHERE) and find(env) is None:
        lacks = [name for name in WHERE if not env.get(name)]
        where = (
            f"no {lacks[0]}" if lacks else "by torch.distributed, and PyTorch is not installed here"
        )
        return rank, size, ", ".join(WHO), f"where they meet ({where})"
    return None


def check(env: Mapping[str, str]) -> None:
    """Raise SettingsError for a RANK that WORLD_SIZE does not allow: such a process is alone by the
    one, and not by the other. Where neither means a job, as -1 or 0 of 0, there is nothing to say.
    """
    try:
        rank, size = (int(env.get(name, "")) for name in WHO)
    except ValueError:  # not there, or a word of somebody else's
        return
    if rank >= max(size, 1) or rank < 0 < size - 1:
        raise SettingsError(
            f"the environment of this process has RANK={rank} and WORLD_SIZE={size}, and a RANK is"
            " a number from 0 to WORLD_SIZE - 1. Give all ranks of a job the same WORLD_SIZE; a"
            " process that is to train alone has neither (unset RANK WORLD_SIZE), or"
            " FARANDOLE_SIZE=1"
        )


def origin(env: Mapping[str, str]) -> str:
    """What has started this process, as far as it can be seen, in words with commas between: the
    step and task of Slurm, mpirun's process above this one, torchrun's run. One mpirun within the
    rank of another has other words.
    """
    words = []
    if "SLURM_PROCID" in env:
        words.append(
            "slurm."
            + ".".join(env.get(f"SLURM_{name}", "") for name in ("JOB_ID", "STEP_ID", "PROCID"))
        )
    if any(name in env for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")) and (
        above := mpi.daemon()
    ):
        words.append(f"mpi.{above}")
    if "TORCHELASTIC_RUN_ID" in env:
        words.append(f"torchrun.{env['TORCHELASTIC_RUN_ID']}")
    return ",".join(words)


def leave(failed: bool) -> None:
    """At the end of the process: nothing is left of the job but those ranks that go on without this
    one.
    """
    serverless = sys.modules.get("farandole.job.bootstrap.serverless")
    if serverless is not None:
        serverless.leave(failed)
