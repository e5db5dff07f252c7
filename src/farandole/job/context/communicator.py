"""mpi4py communicators, which programs written for Horovod pass. Their processes are ranks of
this job.
"""

from __future__ import annotations

from typing import Any

from farandole.job.config import Placement

# mpirun's ranks in this process's job, if it consists of some of them
_part: list[int] | None = None


def is_part(comm: Any, placement: Placement) -> bool:
    """Return whether ``comm`` differs from all processes in rank order.

    Collective if ``comm`` is a communicator.
    """
    global _part
    if hasattr(comm, "Get_group"):
        if comm.Get_size() != placement.size:
            return True
        return any(comm.allgather(comm.Get_rank() != placement.rank))
    _part = list(comm) if isinstance(comm, (list, tuple, range)) else None
    return _part is not None and _part != list(range(placement.size))


def check(comm: Any, placement: Placement) -> None:
    """Raise ValueError for a communicator that is not all ranks in order."""
    if comm is None:
        return
    if hasattr(comm, "Get_group"):
        numbers = [comm.Get_rank(), comm.Get_size()]
        if numbers != [placement.rank, placement.size]:
            raise ValueError(
                f"init(comm=...): this process is rank {numbers[0]} of {numbers[1]} in the"
                f" communicator but rank {placement.rank} of {placement.size} in the job: pass"
                " MPI.COMM_WORLD or no comm; for a part of the ranks use"
                " init(process_sets=[ProcessSet(comm)])"
            )
        return
    if not isinstance(comm, (list, tuple, range)):
        raise ValueError(
            f"Invalid type of argument comm: {type(comm)}. It must be None, a list of ranks or an"
            " mpi4py comm"
        )
    # After shutdown(), programs pass the same list again.
    if list(comm) not in (list(range(placement.size)), _part):
        raise ValueError(
            f"init(comm={list(comm)}): this job has ranks 0 to {placement.size - 1}, and comm"
            " must list all of them in this order; for a part of them use"
            " init(process_sets=[ProcessSet(ranks)])"
        )


def members(comm: Any, rank: int) -> list[int]:
    """Return the ranks in this job of the communicator's processes; this process has ``rank``.

    Collective over the communicator.
    """
    return sorted(comm.allgather(rank))
