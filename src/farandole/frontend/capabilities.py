"""Libraries and devices to run on. Horovod answers these from how it was compiled; here nothing is compiled."""

from __future__ import annotations

from farandole import context, registry


def mpi_built() -> bool:
    """Can jobs be started with mpirun?"""
    import shutil  # here: it loads three kinds of compression

    return "mpi" in registry.names("launcher") and shutil.which("mpirun") is not None


def mpi_enabled() -> bool:
    """Was this job started with mpirun?"""
    return context.is_initialized() and context.connection().launcher == "mpi"


def mpi_threads_supported() -> bool:
    """May threads call MPI? Nothing here does, so that is for the program to ask mpi4py. Raises ValueError without
    MPI."""
    context.settings()
    if not mpi_enabled():
        raise ValueError("Horovod MPI is not enabled; Please make sure it's installed and enabled.")
    return True


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
