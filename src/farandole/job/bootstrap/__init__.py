"""Jobs whose processes were started by a cluster's command, such as ``mpirun python train.py`` or
``srun python train.py``.

One small class per cluster detects whether it started this process, and reads the placement from
the environment. Such a job has no driver: its ranks agree on a store, which rank 0 hosts until all
others have left.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from farandole.errors import SettingsError
from farandole.job.bootstrap import mpi, slurm
from farandole.job.bootstrap.contract import Bootstrap, integers
from farandole.job.bootstrap.mpi import MpiBootstrap
from farandole.job.bootstrap.slurm import SlurmBootstrap
from farandole.job.bootstrap.torchrun import WHERE, WHO, TorchrunBootstrap, TorchVariablesBootstrap
from farandole.job.config import Connection, Placement, Settings

# Later ones start the processes of earlier ones: on each host, torchrun is a task of srun or a rank
# of mpirun; within a Slurm allocation, mpirun starts its daemons with srun.
_VARIABLES = TorchVariablesBootstrap()
BOOTSTRAPS: tuple[Bootstrap, ...] = (
    TorchrunBootstrap(),
    MpiBootstrap(),
    SlurmBootstrap(),
    _VARIABLES,
)


# Programs that start processes on a host, with the name of their bootstrap.
DAEMONS = {**dict.fromkeys(mpi.DAEMONS, MpiBootstrap.name), slurm.DAEMON: SlurmBootstrap.name}


class ClusterJob(NamedTuple):
    """A job started by a cluster's own command, as this process sees it."""

    bootstrap: Bootstrap
    placement: Placement

    def join(self, settings: Settings) -> tuple[Placement, Connection]:
        """Agree on a store with the other ranks. Collective.

        Returns this process's complete placement and the connection to the store, which stays open
        until ``leave``.
        """
        # Imported here because other jobs do not need it.
        from farandole.job.bootstrap import peer_hosted_store

        return peer_hosted_store.join(self.bootstrap, self.placement, settings)

    def among(self, comm: Any, settings: Settings) -> ClusterJob:
        """Return the job of the mpirun processes in ``comm``. Collective over them.

        Raises ValueError for other bootstraps.
        """
        if not isinstance(self.bootstrap, MpiBootstrap):
            raise ValueError(
                f"init(comm=...): {self.bootstrap.name} started these {self.placement.size}"
                " processes, and only mpirun supports a job of some of them; use"
                " init(process_sets=[ProcessSet(ranks)])"
            )
        return ClusterJob(*mpi.part_of(comm, self.placement, settings.start_timeout))


def find(env: Mapping[str, str]) -> ClusterJob | None:
    """Return the job that this process shares with others; None if the process is alone."""
    found = [
        ClusterJob(bootstrap, placement)
        for bootstrap in BOOTSTRAPS
        if (placement := bootstrap.placement(env)) is not None
    ]
    if not found:
        return None
    first, last = found[0], found[-1]
    # Programs of mpirun and srun export torch.distributed's variables for the same number of ranks.
    # If there are more ranks, the variables come from a launcher (deepspeed) that is a rank itself.
    if last.bootstrap is _VARIABLES and last.placement.size > first.placement.size:
        first = last
    return first if first.placement.size > 1 else None


class IncompletePlacement(NamedTuple):
    """A rank of a job that cannot be joined.

    ``variables`` contain rank and size; ``missing`` is the missing information.
    """

    rank: int
    size: int
    variables: str
    missing: str


def incomplete_placement(env: Mapping[str, str]) -> IncompletePlacement | None:
    """Return the placement of a rank whose launcher sets too little to join its job, else None.

    These are PMI-1 without local ranks (Flux, MPICH's gforker), and torch.distributed's variables
    without PyTorch or without an address.
    """
    rank, size = integers(env, ("PMI_RANK", "PMI_SIZE")) or (0, 1)
    if size > 1 and not any(bootstrap.placement(env) for bootstrap in BOOTSTRAPS):
        return IncompletePlacement(
            rank, size, "PMI_RANK, PMI_SIZE", "the host of each rank (no MPI_LOCALRANKID)"
        )
    rank, size = integers(env, WHO) or (0, 1)
    if size > 1 and any(name in env for name in WHERE) and find(env) is None:
        lacks = [name for name in WHERE if not env.get(name)]
        where = (
            f"no {lacks[0]}" if lacks else "by torch.distributed, and PyTorch is not installed here"
        )
        return IncompletePlacement(rank, size, ", ".join(WHO), f"a meeting address ({where})")
    return None


def check(env: Mapping[str, str]) -> None:
    """Raise SettingsError if RANK and WORLD_SIZE contradict each other.

    One of them then means that the process is alone, and the other that it is not. Values that both
    mean no job, such as -1 or 0 of 0, are accepted.
    """
    try:
        rank, size = (int(env.get(name, "")) for name in WHO)
    except ValueError:  # missing, or unrelated text
        return
    if rank >= max(size, 1) or rank < 0 < size - 1:
        raise SettingsError(
            f"RANK={rank} must be a number from 0 to WORLD_SIZE - 1, and WORLD_SIZE={size} in the"
            " environment of this process. Give all ranks of a job the same WORLD_SIZE; to train"
            " alone, unset both (unset RANK WORLD_SIZE), or set FARANDOLE_SIZE=1"
        )


def leave(failed: bool) -> None:
    """End this process's membership in a job without a driver, at the end of the process."""
    peer_hosted_store = sys.modules.get("farandole.job.bootstrap.peer_hosted_store")
    if peer_hosted_store is not None:
        peer_hosted_store.leave(failed)
