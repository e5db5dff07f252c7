"""Threads that a job cannot do without, and why one cannot be started."""

from __future__ import annotations

import threading

from farandole.errors import SettingsError

FULL = (
    "this user has as many processes and threads as `ulimit -u` allows, or this container or batch"
    " job as many as its control group does (pids.max); raise that, or start fewer ranks"
)


def full() -> str:
    """Why no thread can be started, with the cure. pthread_create tells one reason for all
    limits.
    """
    import resource  # here: a plain job needs it for nothing

    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space == resource.RLIM_INFINITY:
        return FULL
    return (
        f"its stack finds no room in the {space >> 20} MiB that a process may map here (`ulimit"
        f" -v`), or {FULL}"
    )


def start(thread: threading.Thread) -> None:
    """``thread.start()``. Raises SettingsError with the cure where there may be no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        # of an interpreter that ends
        if "new thread" not in str(error) or "shutdown" in str(error):
            raise
        raise SettingsError(f"the thread {thread.name!r} cannot be started: {full()}") from error
