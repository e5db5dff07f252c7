"""Threads that a job cannot do without, and why one cannot be started."""

from __future__ import annotations

import threading

from farandole.errors import SettingsError

FULL = (
    "this user has as many processes and threads as `ulimit -u` allows, or this container or batch job as many as its "
    "control group does (pids.max); raise that, or start fewer ranks"
)


def start(thread: threading.Thread) -> None:
    """``thread.start()``. Raises SettingsError with the cure where there may be no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        if "new thread" not in str(error) or "shutdown" in str(error):  # of an interpreter that ends
            raise
        raise SettingsError(f"the thread {thread.name!r} cannot be started: {FULL}") from error
