"""Jobs whose processes a cluster's own command started: ``mpirun python train.py``, ``srun python
train.py``.

One small class for each cluster finds in the environment whether it started this process, and the
placement. Such a job has no driver: its ranks agree on a store, which rank 0 hosts until all others
have left.
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

# Later ones start the processes of earlier ones: torchrun is a task of srun, or a rank of mpirun,
# on each host; mpirun in an allocation of Slurm starts its daemons with srun.
_VARIABLES = TorchVariablesBootstrap()
BOOTSTRAPS: tuple[Bootstrap, ...] = (
    TorchrunBootstrap(),
    MpiBootstrap(),
    SlurmBootstrap(),
    _VARIABLES,
)


# Programs that start processes on a host, and for whom.
DAEMONS = {**dict.fromkeys(mpi.DAEMONS, MpiBootstrap.name), slurm.DAEMON: SlurmBootstrap.name}


class ClusterJob(NamedTuple):
    """A job that a cluster's own command started, as this process sees it."""

    bootstrap: Bootstrap
    placement: Placement

    def join(self, settings: Settings) -> tuple[Placement, Connection]:
        """Agree with the other ranks on a store. Collective. Return this process's placement, now
        complete, and how it reaches the store, to which it holds a connection until ``leave``.
        """
        # here, so that other jobs do not pay for it
        from farandole.job.bootstrap import peer_hosted_store

        return peer_hosted_store.join(self.bootstrap, self.placement, settings)

    def among(self, comm: Any, settings: Settings) -> ClusterJob:
        """The job of a part of mpirun's processes: those of ``comm``, who call this. Raises
        ValueError elsewhere.
        """
        if not isinstance(self.bootstrap, MpiBootstrap):
            raise ValueError(
                f"init(comm=...): {self.bootstrap.name} has started these {self.placement.size}"
                " processes, and a part of them can be a job of its own only by mpirun; use"
                " init(process_sets=[ProcessSet(ranks)])"
            )
        return ClusterJob(*mpi.part_of(comm, self.placement, settings.start_timeout))


def find(env: Mapping[str, str]) -> ClusterJob | None:
    """Return the job of this process and others; None if this process is alone."""
    found = [
        ClusterJob(bootstrap, placement)
        for bootstrap in BOOTSTRAPS
        if (placement := bootstrap.placement(env)) is not None
    ]
    if not found:
        return None
    first, last = found[0], found[-1]
    # Programs of mpirun and srun export torch.distributed's variables, of the same number of ranks.
    # Those of more ranks are of a launcher (deepspeed) that is a rank itself.
    if last.bootstrap is _VARIABLES and last.placement.size > first.placement.size:
        first = last
    return first if first.placement.size > 1 else None


class IncompletePlacement(NamedTuple):
    """A rank of a job that cannot be joined. ``variables``: those that have rank and size;
    ``missing``: what they leave open.
    """

    rank: int
    size: int
    variables: str
    missing: str


def incomplete_placement(env: Mapping[str, str]) -> IncompletePlacement | None:
    """Return the placement of a rank whose launcher sets too little to join its job: PMI-1 alone
    (Flux, MPICH's gforker), or torch.distributed's variables without PyTorch or an address.
    """
    rank, size = integers(env, ("PMI_RANK", "PMI_SIZE")) or (0, 1)
    if size > 1 and not any(bootstrap.placement(env) for bootstrap in BOOTSTRAPS):
        return IncompletePlacement(
            rank, size, "PMI_RANK, PMI_SIZE", "who is on which host (no MPI_LOCALRANKID)"
        )
    rank, size = integers(env, WHO) or (0, 1)
    if size > 1 and any(name in env for name in WHERE) and find(env) is None:
        lacks = [name for name in WHERE if not env.get(name)]
        where = (
            f"no {lacks[0]}" if lacks else "by torch.distributed, and PyTorch is not installed here"
        )
        return IncompletePlacement(rank, size, ", ".join(WHO), f"where they meet ({where})")
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


def leave(failed: bool) -> None:
    """End this process's part in a job without a driver, at the end of the process."""
    peer_hosted_store = sys.modules.get("farandole.job.bootstrap.peer_hosted_store")
    if peer_hosted_store is not None:
        peer_hosted_store.leave(failed)
