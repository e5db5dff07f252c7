"""Variables that say which process of mpirun or of a step of Slurm this one is, by prefix. The
ranks that are started below it are no such processes: all of them would take themselves for the
same one.

What the user sets (``OMPI_MCA_btl``, ``OMPI_ALLOW_RUN_AS_ROOT``, ``HYDRA_IFACE``) is not among
them, nor what says of the allocation where it is (``SLURM_JOB_ID``).
"""

from __future__ import annotations

from collections.abc import Mapping

OTHERS = (
    "PMI_",
    "PMI2_",
    "PRTE_LAUNCHED",
    "PRTE_SHARED_FS",
    "MPI_LOCAL",
    "MPI_APPNUM",
    "MPI_UNIVERSE_SIZE",
    "HYDI_",
    "HYDT_",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_GTIDS",
    "SLURM_STEP",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_TASK",
    "SLURM_MPI_TYPE",
)
OPEN_MPI = (
    "OMPI_COMM_WORLD_",
    "OMPI_WORLD_",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_NUM_APP_CTX",
    "OMPI_APP_CTX_",
    "OMPI_FIRST_RANKS",
    "OMPI_ARGV",
    "OMPI_COMMAND",
    "OMPI_FILE_LOCATION",
    "OMPI_TOOL_NAME",
    "OMPI_MCA_orte_",
    "OMPI_MCA_ess",
    "OMPI_MCA_pmix",
    "OMPI_MCA_num_procs",
    "OMPI_MCA_initial_wdir",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "PMIX_ID",
    "PMIX_SERVER_",
    "PMIX_SYSTEM_TMPDIR",
    "PMIX_HOSTNAME",
    "PMIX_VERSION",
    "PMIX_PARAM_FILE",
    "PMIX_BFROP_",
    "PMIX_GDS_",
    "PMIX_SECURITY_",
)
PLACE = (*OTHERS, *OPEN_MPI)


def without(env: Mapping[str, str], prefixes: tuple[str, ...] = PLACE) -> dict[str, str]:
    """``env`` for processes that are started from here."""
    return {name: value for name, value in env.items() if not name.startswith(prefixes)}
