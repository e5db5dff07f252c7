"""Names of variables by which one process of a job finds what another one has set."""

from __future__ import annotations

# what had started a rank when its placement was set
ORIGIN = "FARANDOLE_ORIGIN"
# the variables of a rank that some launcher started: see ``bootstrap.origin``
STARTERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "TORCHELASTIC_RUN_ID")
# the pid of a rank whose program is a command
PROCESS = "FARANDOLE_PROCESS"
# set if the status of this rank's job is shown to a user
STATUS = "FARANDOLE_STATUS"
