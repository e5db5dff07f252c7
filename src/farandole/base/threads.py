"""Threads that a job needs, and the reason if one cannot be started."""

from __future__ import annotations

import threading

from farandole.errors import SettingsError

FULL = (
    "this user has as many processes and threads as `ulimit -u` allows, or this container or batch"
    " job as many as its control group does (pids.max); raise that, or start fewer ranks"
)


def full() -> str:
    """Return why no thread can be started, with the cure.

    pthread_create gives the same reason for all limits.
    """
    import resource  # imported here because a plain job does not need it

    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space == resource.RLIM_INFINITY:
        return FULL
    return (
        f"its stack finds no room in the {space >> 20} MiB that a process may map here (`ulimit"
        f" -v`), or {FULL}"
    )


def start(thread: threading.Thread) -> None:
    """Start ``thread``. Raises SettingsError with the cure if a limit prevents new threads."""
    try:
        thread.start()
    except RuntimeError as error:
        # The second condition: the interpreter is shutting down.
        if "new thread" not in str(error) or "shutdown" in str(error):
            raise
        raise SettingsError(f"the thread {thread.name!r} cannot be started: {full()}") from error
