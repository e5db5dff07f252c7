"""Checks of this process before a job starts: its standard streams, and enough open files."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TextIO

from farandole.errors import SettingsError, counted

FILES = 32  # open files that a job needs however small it is
FILES_PER_RANK = 6  # while ranks start: both ends of two pipes, and connections to the store
LOGS_PER_RANK = 2


def open_standard_streams() -> None:
    """/dev/null takes the place of a closed standard stream (``farandole run >&-``), or the next
    pipe would get its number.
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
    """``sys.stdout`` or ``sys.stderr``, which are None if their descriptor was closed."""
    if getattr(sys, name) is None:
        open_standard_streams()
    stream: TextIO = getattr(sys, name)
    return stream


def check_open_files(np: int, logs: bool) -> None:
    """SettingsError if this process, or a rank, would run out of descriptors: the failure blames
    something else.
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
    """What lets more ranks start on this host, where a limit of it has stopped them; empty for
    other errors.
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
    """Why a process may have been killed that ranks here would be, too; empty without such a
    limit.
    """
    import resource

    # at the soft one comes SIGXCPU, if that is less
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard == resource.RLIM_INFINITY:
        return ""
    return (
        f", or because it used up the {counted(hard, 'second')} of processor time that it may have"
        " (`ulimit -t`)"
    )


def check_proc(proc: str = "/proc") -> None:
    """SettingsError if the processes of a job could not be found when it ends: /proc is not there,
    or another one's.
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
    """A warning about many ranks on few cores of a host; empty without one."""
    if np < 2 * cores or np < 2:
        return ""
    return (
        f"{np} ranks share {cores} core{'s' if cores > 1 else ''} of {host} and take turns: "
        f"training takes longer than with -np {cores}"
    )
