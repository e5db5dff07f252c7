"""The origin of a process: which step, mpirun or run of torchrun has started it."""

from __future__ import annotations

from collections.abc import Mapping

from farandole.job.bootstrap import mpi


def origin(env: Mapping[str, str]) -> str:
    """What has started this process, as far as it can be seen, in words with commas between: the
    step and task of Slurm, mpirun's process above this one, torchrun's run. One mpirun within the
    rank of another has other words.
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
