"""Queries for libraries and devices. In Horovod the answers depend on compilation; this package is
not compiled.
"""

from __future__ import annotations

import os

from farandole.job import context
from farandole.job.plugins import registry

_DISABLED = "Horovod MPI is not enabled; Please make sure it's installed and enabled."


def mpi_built() -> bool:
    """Return whether jobs can be started with mpirun."""
    import shutil  # imported here: it loads three compression modules

    return "mpi" in registry.names("launcher") and shutil.which("mpirun") is not None


def mpi_enabled() -> bool:
    """Return whether this job was started with mpirun."""
    return context.takes_part() and context.connection().launcher == "mpi"


def mpi_threads_supported() -> bool:
    """Return whether threads of the program may call MPI.

    Afterwards MPI is initialised, and ``mpi4py.MPI.COMM_WORLD`` has the ranks of this job, or more
    ranks after ``init(comm=...)`` with a subset. Raises ValueError if MPI does not have these
    ranks, as in a job that was not started with mpirun.
    """
    context.settings()
    if not mpi_enabled():
        raise ValueError(_DISABLED)
    import importlib.util

    if importlib.util.find_spec("mpi4py") is None:
        return True  # neither this package nor the program can call MPI
    from farandole.job.bootstrap import mpi, peer_hosted_store

    part = isinstance(peer_hosted_store.current_bootstrap(), mpi.MpiPartBootstrap)
    among = mpi.MpiBootstrap().placement(os.environ) if part else None
    world, trouble = mpi.world_of(among or context.placement())
    if world is None:
        raise ValueError(
            f"{_DISABLED} {trouble}. To use MPI together with Horovod, run: mpirun -np N"
            " python train.py"
        )
    MPI = mpi.library()
    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def gloo_built() -> bool:
    """Return True: jobs can always run without MPI."""
    return True


def gloo_enabled() -> bool:
    """Return whether this job runs without MPI."""
    return not mpi_enabled()


def ddl_built() -> bool:
    """Return False: DDL is not supported."""
    return False


def ccl_built() -> bool:
    """Return False: oneCCL is not supported."""
    return False
