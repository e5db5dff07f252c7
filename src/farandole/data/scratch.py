"""Temporary folders of a process. Folders of killed processes (kill -9) are recognized by name, and
removed by a later process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator

_numbers = itertools.count()


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[str]:
    """Yield a temporary folder of this process, until the ``with`` block ends."""
    remove_abandoned(tempfile.gettempdir(), prefix)
    path = os.path.join(tempfile.gettempdir(), scratch_name(prefix))
    os.mkdir(path, 0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def scratch_name(prefix: str) -> str:
    """Return a name for a folder that no other process uses."""
    pid = os.getpid()
    process = f"{socket.gethostname()}-{pid}-{_started(pid)}-{_namespace()}"
    return f"{prefix}-{process}-{next(_numbers)}"


def remove_abandoned(parent: str | None, prefix: str) -> None:
    """Remove the folders of ended processes on this host."""
    if parent is None or not os.path.isdir(parent):
        return
    for name in os.listdir(parent):
        front, _, rest = name.partition(f"-{socket.gethostname()}-")
        numbers = rest.split("-")
        if (
            front != prefix
            or len(numbers) != 4
            or not numbers[0].isdigit()
            or numbers[2] != _namespace()
        ):
            continue
        if _started(int(numbers[0])) != numbers[1]:
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)


def _started(pid: int) -> str:
    """Return the start time of a process in kernel ticks, unaffected by clock changes; "" if the
    process does not exist.

    PID and start time together identify a process.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _namespace() -> str:
    """Return the PID namespace: containers may share a folder and a host name."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"
