"""Libraries and devices to run on. Horovod answers these from how it was compiled; here nothing is
compiled.
"""

from __future__ import annotations

import os

from farandole.job import context
from farandole.job.plugins import registry

_DISABLED = "Horovod MPI is not enabled; Please make sure it's installed and enabled."


def mpi_built() -> bool:
    """Can jobs be started with mpirun?"""
    import shutil  # here: it loads three kinds of compression

    return "mpi" in registry.names("launcher") and shutil.which("mpirun") is not None


def mpi_enabled() -> bool:
    """Was this job started with mpirun?"""
    return context.takes_part() and context.connection().launcher == "mpi"


def mpi_threads_supported() -> bool:
    """May threads of the program call MPI? Afterwards it is initialised, and
    ``mpi4py.MPI.COMM_WORLD`` has the ranks of this job, and others after ``init(comm=...)`` with a
    part of them. Raises ValueError where it has not, as in a job that was not started with mpirun.
    """
    context.settings()
    if not mpi_enabled():
        raise ValueError(_DISABLED)
    import importlib.util

    if importlib.util.find_spec("mpi4py") is None:
        return True  # nothing here calls MPI, and the program cannot
    from farandole.job.bootstrap import mpi, peer_hosted_store

    part = isinstance(peer_hosted_store.current_bootstrap(), mpi.MpiPartBootstrap)
    among = mpi.MpiBootstrap().placement(os.environ) if part else None
    world, trouble = mpi.world_of(among or context.placement())
    if world is None:
        raise ValueError(
            f"{_DISABLED} {trouble}. To use MPI beside Horovod: mpirun -np N python train.py"
        )
    MPI = mpi.library()
    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def gloo_built() -> bool:
    """Can jobs run without MPI? Always."""
    return True


def gloo_enabled() -> bool:
    """Does this job run without MPI?"""
    return not mpi_enabled()


def ddl_built() -> bool:
    """False: there is no DDL here."""
    return False


def ccl_built() -> bool:
    """False: there is no oneCCL here."""
    return False
