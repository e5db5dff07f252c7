"""The request to requeue a Slurm job when all its hosts are being preempted."""

from __future__ import annotations

import os
from collections.abc import Callable

from farandole.base.log import logger

PATIENCE = 30.0  # seconds for one call of scontrol


class SlurmRequeue:
    """Requeues the surrounding Slurm job, once, if ``wanted``.

    Slurm then ends the job as at its time limit (SIGTERM, KillWait), and runs the batch script
    again with SLURM_RESTART_COUNT: the program resumes from its last commit or checkpoint on disk.
    """

    def __init__(self, wanted: bool) -> None:
        self._job = os.environ.get("SLURM_JOB_ID", "") if wanted else ""

    def ask(self, note: Callable[[str], None]) -> None:
        """Requeue the job; has no effect the second time, and outside Slurm. ``note``: shows a
        line.
        """
        if not self._job:
            return
        import subprocess  # imported here because most jobs never start a program

        job, self._job = self._job, ""
        count = os.environ.get("SLURM_RESTART_COUNT", "0")
        # Before the request, because Slurm may end this process immediately.
        note(f"Slurm's job {job} returns to its queue (restarts so far: {count})")
        command = ["scontrol", "requeue", job]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            logger.warning("%s failed: %s", " ".join(command), error)
            return
        if done.returncode:
            logger.warning(
                "%s ended with exit code %d: %s. Submit the job with sbatch --requeue",
                " ".join(command),
                done.returncode,
                done.stderr.strip()[-500:],
            )
