"""Checks of this process before a job starts: standard streams and open files."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TextIO

from farandole.errors import SettingsError, counted

FILES = 32  # open files that the smallest job needs
FILES_PER_RANK = 6  # during the start: both ends of two pipes, and connections to the store
LOGS_PER_RANK = 2


def open_standard_streams() -> None:
    """Open /dev/null in place of closed standard streams (``farandole run >&-``).

    Otherwise the next pipe would get the number of a standard stream.
    """
    fd = -1
    while fd < 2:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd <= 2:
            os.set_inheritable(fd, True)
    if fd > 2:
        os.close(fd)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (stays)


def standard(name: str) -> TextIO:
    """Return ``sys.stdout`` or ``sys.stderr``, reopened if its descriptor was closed."""
    if getattr(sys, name) is None:
        open_standard_streams()
    stream: TextIO = getattr(sys, name)
    return stream


def check_open_files(np: int, logs: bool) -> None:
    """Raise SettingsError if this process or a rank would run out of file descriptors.

    The later failure would suggest a different cause.
    """
    import resource

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    used = 0
    with contextlib.suppress(OSError):
        used = len(os.listdir("/proc/self/fd"))
    needed = used + FILES + np * (FILES_PER_RANK + (LOGS_PER_RANK if logs else 0))
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        raise SettingsError(
            f"a process may have {allowed} open files here (RLIMIT_NOFILE), and a job of"
            f" {counted(np, 'rank')} needs {needed}: raise the limit with `ulimit -n"
            f" {max(1024, needed)}`, or start fewer ranks"
        )


def cure(error: BaseException | None) -> str:
    """Return the cure for a limit of this host that kept ranks from starting; empty for other
    errors.
    """
    import resource

    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        limit = (
            f"a process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} open files here"
            " (`ulimit -n`)"
        )
    elif number == errno.EAGAIN:
        limit = (
            f"a user may have {resource.getrlimit(resource.RLIMIT_NPROC)[0]} processes and threads"
            " here (`ulimit -u`), a container or a batch job perhaps fewer (pids.max of its"
            " control group)"
        )
    elif number == errno.E2BIG:
        return (
            "; the kernel takes a quarter of the stack's limit (`ulimit -s`) for the environment"
            " and the command line together, 128 KiB for one of them: shorten them, or raise that"
        )
    else:
        return ""
    return f"; {limit}: raise that, or start fewer ranks"


def processor_time() -> str:
    """Return the CPU time limit as a possible reason for killed processes; empty without such a
    limit.

    Ranks on this host inherit the limit.
    """
    import resource

    # A lower soft limit sends SIGXCPU instead.
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard == resource.RLIM_INFINITY:
        return ""
    return (
        f", or because it used up the {counted(hard, 'second')} of processor time that it may have"
        " (`ulimit -t`)"
    )


def check_proc(proc: str = "/proc") -> None:
    """Raise SettingsError if a job's processes could not be found at its end.

    This is the case if /proc is not mounted, or belongs to another PID namespace.
    """
    found, pid = "", os.getpid()
    with contextlib.suppress(OSError):
        found = os.readlink(f"{proc}/self")
    if found != str(pid):
        seen = (
            f"knows this process by the number {found} of other namespaces"
            if found
            else "is not mounted"
        )
        raise SettingsError(
            f"{proc} {seen} (this process is {pid}), and a job's processes are found there: "
            "mount it (mount -t proc proc /proc; for unshare: --mount-proc)"
        )


def crowding(np: int, cores: int, host: str = "this machine") -> str:
    """Return a warning about many ranks on few cores of a host, or an empty string."""
    if np < 2 * cores or np < 2:
        return ""
    return (
        f"{np} ranks share {cores} core{'s' if cores > 1 else ''} of {host} and take turns: "
        f"training takes longer than with -np {cores}"
    )
