"""Communicators of mpi4py, which programs written for Horovod pass. Their processes are ranks of
this job.
"""

from __future__ import annotations

from typing import Any

from farandole.job.config import Placement

_part: list[int] | None = None  # of mpirun's ranks, if a list of some made this process's job


def is_part(comm: Any, placement: Placement) -> bool:
    """Does it hold other processes than all, in their order? Collective, where it is a
    communicator.
    """
    global _part
    if hasattr(comm, "Get_group"):
        if comm.Get_size() != placement.size:
            return True
        return any(comm.allgather(comm.Get_rank() != placement.rank))
    _part = list(comm) if isinstance(comm, (list, tuple, range)) else None
    return _part is not None and _part != list(range(placement.size))


def check(comm: Any, placement: Placement) -> None:
    """ValueError for a communicator that is not that of all ranks, in their order."""
    if comm is None:
        return
    if hasattr(comm, "Get_group"):
        numbers = [comm.Get_rank(), comm.Get_size()]
        if numbers != [placement.rank, placement.size]:
            raise ValueError(
                f"init(comm=...): this process is rank {numbers[0]} of {numbers[1]} in the"
                f" communicator and rank {placement.rank} of {placement.size} in the job, which"
                " must be the same: give MPI.COMM_WORLD, or none; for a part of the ranks use"
                " init(process_sets=[ProcessSet(comm)])"
            )
        return
    if not isinstance(comm, (list, tuple, range)):
        raise ValueError(
            f"Invalid type of argument comm: {type(comm)}. It must be None, a list of ranks or an"
            " mpi4py comm"
        )
    # after shutdown() programs say again what they said
    if list(comm) not in (list(range(placement.size)), _part):
        raise ValueError(
            f"init(comm={list(comm)}): this job has ranks 0 to {placement.size - 1}, and all of"
            " them must be in, in this order; for a part of them use"
            " init(process_sets=[ProcessSet(ranks)])"
        )


def members(comm: Any, rank: int) -> list[int]:
    """The ranks of its processes in this job, where this one has ``rank``. All of them call
    this.
    """
    return sorted(comm.allgather(rank))
