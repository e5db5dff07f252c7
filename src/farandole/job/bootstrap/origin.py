"""The origin of a process: the Slurm step, mpirun or torchrun run that started it."""

from __future__ import annotations

from collections.abc import Mapping

from farandole.job.bootstrap import mpi


def origin(env: Mapping[str, str]) -> str:
    """Return the visible origin of this process as comma-separated words.

    The words are the Slurm step and task, the mpirun process above this one, and torchrun's run. An
    mpirun within a rank of another mpirun gives different words.
    """
    words = []
    if "SLURM_PROCID" in env:
        words.append(
            "slurm."
            + ".".join(env.get(f"SLURM_{name}", "") for name in ("JOB_ID", "STEP_ID", "PROCID"))
        )
    if any(name in env for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")) and (
        above := mpi.daemon()
    ):
        words.append(f"mpi.{above}")
    if "TORCHELASTIC_RUN_ID" in env:
        words.append(f"torchrun.{env['TORCHELASTIC_RUN_ID']}")
    return ",".join(words)
