"""Mirrors: copies of a run's metrics in other trackers, each written by a separate process.

The run's folder remains the original, and a failing mirror does not affect the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from farandole.job.plugins import registry
from farandole.job.runs.folder import RunFolder

_PATIENCE = 60.0  # seconds for mirrors to exit after the run


def names_of(setting: str) -> list[str]:
    """Return the mirrors that a setting names, such as ``mlflow,tensorboard``.

    Raises SettingsError for an unknown name.
    """
    found = [name.strip() for name in setting.split(",") if name.strip()]
    for name in found:
        registry.check("mirror", name)
    return found


def start(folder: RunFolder, attempt: int, setting: str) -> list[subprocess.Popen[bytes]]:
    """Start the mirrors of an attempt and return their processes.

    Raises SettingsError for an unknown name.
    """
    return [_start(folder, attempt, name) for name in names_of(setting)]


def _start(folder: RunFolder, attempt: int, name: str) -> subprocess.Popen[bytes]:
    folder.folder("logs")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = os.open(folder.file("logs", f"mirror-{name}.txt"), flags, 0o600)
    safe = ["-P"] if sys.version_info >= (3, 11) else []  # import no modules of the user's folder
    module = ["-m", "farandole.jobs.mirrors.process", folder.path, str(attempt), name]
    try:
        return subprocess.Popen(
            [sys.executable, *safe, *module],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # on Ctrl-C, the mirror still records the run's end
        )
    finally:
        os.close(log)


def wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until the mirrors have recorded the end of the run; stop mirrors that take too long."""
    deadline = time.monotonic() + _PATIENCE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
