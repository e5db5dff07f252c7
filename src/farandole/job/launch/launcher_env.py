"""The environment that ranks inherit from a launcher.

Variables that identify this process as one of mpirun's or of a Slurm step are hidden by prefix;
otherwise all ranks would identify themselves as that process. Variables that the user sets
(``OMPI_MCA_btl``, ``OMPI_ALLOW_RUN_AS_ROOT``, ``HYDRA_IFACE``) and those that locate the allocation
(``SLURM_JOB_ID``) are kept.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from farandole.job.config import Connection, Placement, Settings
from farandole.job.config.fields import variables

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


def inherited(
    env: Mapping[str, str], hidden: tuple[str, ...] = PLACE, names: Container[str] = ()
) -> dict[str, str]:
    """Return the variables of ``env`` that ranks inherit.

    Variables with a ``hidden`` prefix and those in ``names`` are left out. Settings are left out
    too: they are already read and sent with the job.
    """
    settings = variables(Placement, Connection, Settings)
    return {
        name: value
        for name, value in env.items()
        if not name.startswith(hidden) and name not in settings and name not in names
    }
