"""The logs of a run's ranks: ``user_logs/std_log_process_<rank>.txt``. In an elastic run, process
numbers replace ranks, which change.
"""

from __future__ import annotations

import os

from farandole.base.descriptors import write_all
from farandole.base.log import logger
from farandole.job.runs.folder import RunFolder

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class RunLogs:
    """Writes the output of all ranks to a run's folder; stdout and stderr share one file.

    Later attempts append to the file. A full disk causes one warning and does not end the run.
    """

    def __init__(self, folder: RunFolder, size: int) -> None:
        folder.folder("user_logs")
        self.notes: list[str] = []
        self._folder = folder
        self._files = {rank: os.open(folder.log_of(rank), _FLAGS, 0o600) for rank in range(size)}
        self._warned = False

    def add(self, rank: int, name: str) -> None:
        path = self._folder.file("user_logs", f"std_log_{name.replace('.', '_')}.txt")
        if name == f"rank.{rank}":  # a process of an elastic job, which starts later
            path = self._folder.log_of(rank)
        self._files[rank] = os.open(path, _FLAGS, 0o600)

    def write(self, key: tuple[int, str], data: bytes) -> None:
        file = self._files.get(key[0])
        if file is None:
            return
        try:
            write_all(file, data)
        except OSError as error:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "the logs of run %s are incomplete from now on: %s; the run continues",
                    self._folder.run_id,
                    error.strerror,
                )

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
