"""The heartbeat of a runner: a file in the run's folder, for supervisors on other hosts.

A supervisor cannot read the process table of another host, so each runner touches a file at
intervals. An old file means that the runner's host is lost or was restarted.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from types import TracebackType

from farandole.job.runs.folder import RunFolder

EVERY = 10.0  # seconds between two touches
LOST = 60.0  # seconds without a touch after which a runner on another host counts as lost
_FILE = "heartbeat"


class Heartbeat:
    """A context that touches the heartbeat file of ``folder``, and deletes the file at the end."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        touch(self._folder)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            os.unlink(self._folder.file(_FILE))

    def _beat(self) -> None:
        while not self._over.wait(EVERY):
            touch(self._folder)


def touch(folder: RunFolder) -> None:
    """Touch the heartbeat file. A full disk or a lost file system is ignored."""
    with contextlib.suppress(OSError):
        _touched(folder.file(_FILE))


def silence(folder: RunFolder) -> float:
    """Return the seconds since the last touch; 0 without a heartbeat file."""
    try:
        last = os.stat(folder.file(_FILE)).st_mtime
        if time.time() - last <= LOST:
            return 0.0
        # Use the clock of the file system, because the clocks of hosts may differ.
        probe = folder.file(f".{_FILE}-{os.getpid()}")
        try:
            return max(0.0, _touched(probe) - last)
        finally:
            os.unlink(probe)
    except OSError:
        return 0.0


def _touched(path: str) -> float:
    """Touch a file and return its new modification time."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
