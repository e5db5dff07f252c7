"""Detects a job whose ranks have loaded a framework but never called ``init()``.

A command runs none of Farandole's code before importing it, so the driver inspects the libraries
mapped by the processes of this host, a few times per job.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from farandole.job.launch import reaper
from farandole.job.launch.contract import Worker
from farandole.job.launch.job import Job
from farandole.job.launch.processes import LocalWorker
from farandole.job.report import keys
from farandole.net.store import StoreServer

# Seconds until the first check; each later check waits twice as long as the previous one
FIRST = 2.0
# Parts of file names. PyTorch is not among them: its steps are seen in the rank (see ``report``).
LIBRARIES = {"libtensorflow_": "TensorFlow", "/jaxlib/": "JAX", "libmxnet": "MXNet"}


class UninitializedRanks:
    """The ranks of ``job``, until one of them calls ``init()``."""

    def __init__(self, job: Job, store: StoreServer) -> None:
        self._job = job
        self._store = store
        self._framework = ""
        self._began = time.monotonic()
        self._after = FIRST
        # Ranks of an elastic job count their sessions by membership.
        self._unknown = job.np == 1 or job.settings.check == "off" or job.elastic is not None
        self._is_over = self._unknown or not job.command

    def poll(self, workers: Sequence[Worker]) -> None:
        """Look for a framework, if a check is due and none has been found."""
        if self._is_over or time.monotonic() < self._began + self._after:
            return
        self._after *= 2
        self._framework = framework(workers)
        self._is_over = bool(self._framework) or self._has_joined()

    def finding(self) -> str:
        """Return the message for the user at the end of the job; empty if there is nothing to
        report.
        """
        if self._unknown or self._has_joined():
            return ""
        reported = self._store.get(keys.UNINITIALIZED)
        name = self._framework if reported is None else bytes(reported).decode("utf-8", "replace")
        if not name:
            return ""
        # Imported here because correct jobs do not need it.
        from farandole.job.report.uninitialized import text

        return text(self._job.np, name)

    def _has_joined(self) -> bool:
        return any(
            self._store.get(keys.sessions(0, self._job.np, rank)) is not None
            for rank in range(self._job.np)
        )


def framework(workers: Sequence[Worker]) -> str:
    """Return the framework that the processes of this host's ranks have loaded; empty for none."""
    pids = [worker.pid for worker in workers if isinstance(worker, LocalWorker)]
    known = reaper.processes() if pids else {}
    for pid in (each for root in pids for each in (root, *reaper.below(root, known))):
        try:
            with open(f"/proc/{pid}/maps") as file:
                text = file.read()
        except OSError:
            continue
        found = next((title for part, title in LIBRARIES.items() if part in text), "")
        if found:
            return found
    return ""
