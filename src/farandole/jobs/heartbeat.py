"""A sign of life in the folder of an active run, for supervisors on other hosts.

The process table of another host cannot be read. So a runner touches a file at intervals; once the
file is old, its host is lost or was restarted.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from types import TracebackType

from farandole.job.runs.folder import RunFolder

EVERY = 10.0  # seconds between two touches
LOST = 60.0  # seconds without a touch after which a runner of another host counts as gone
_FILE = "heartbeat"


class Heartbeat:
    """Touches the file of ``folder`` while the context lasts, and deletes it at the end."""

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
    """Show that the run's runner is alive. A full disk or a lost file system is no error."""
    with contextlib.suppress(OSError):
        _touched(folder.file(_FILE))


def silence(folder: RunFolder) -> float:
    """Return the seconds since the last touch; 0 if the folder has no such file."""
    try:
        last = os.stat(folder.file(_FILE)).st_mtime
        if time.time() - last <= LOST:
            return 0.0
        # The clock of the file system decides: clocks of hosts may differ.
        probe = folder.file(f".{_FILE}-{os.getpid()}")
        try:
            return max(0.0, _touched(probe) - last)
        finally:
            os.unlink(probe)
    except OSError:
        return 0.0


def _touched(path: str) -> float:
    """Set a file to the time of its file system, and return the time."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
