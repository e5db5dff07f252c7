"""Thread creation, with the reason and the cure if a thread cannot be started."""

from __future__ import annotations

import threading

from farandole.errors import SettingsError

FULL = (
    "the limit on processes and threads of this user (`ulimit -u`), or of this container or batch"
    " job (pids.max), is reached; raise that limit, or start fewer ranks"
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
        f"its stack does not fit into the {space >> 20} MiB of address space that a process may"
        f" map here (`ulimit -v`), or {FULL}"
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
