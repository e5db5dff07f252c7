"""Names of variables through which processes of a job pass information to each other."""

from __future__ import annotations

# The origin of a rank when its placement was set.
ORIGIN = "FARANDOLE_ORIGIN"
# Variables of ranks started by a known launcher; see ``bootstrap.origin``.
STARTERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "TORCHELASTIC_RUN_ID")
# The pid of a rank whose program is a command.
PROCESS = "FARANDOLE_PROCESS"
# Set if a user sees the status of this rank's job.
STATUS = "FARANDOLE_STATUS"
# The folder of the run to which this process belongs.
RUN_VARIABLE = "FARANDOLE_RUN_DIR"
# The number of restarts of this rank's job so far. Set if the job may be restarted.
RESTART_VARIABLE = "FARANDOLE_RESTART_COUNT"
# The same under torchrun's name, and the maximum number of restarts.
TORCH_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
