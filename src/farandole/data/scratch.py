"""Folders for as long as a process runs: those of processes that ended without a chance to remove
theirs (kill -9) are found by their names, and removed by the next one.
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
    """A temporary folder of this process, until the ``with`` block ends."""
    remove_abandoned(tempfile.gettempdir(), prefix)
    path = os.path.join(tempfile.gettempdir(), scratch_name(prefix))
    os.mkdir(path, 0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def scratch_name(prefix: str) -> str:
    """A name for a folder of this process, which no other one has."""
    pid = os.getpid()
    process = f"{socket.gethostname()}-{pid}-{_started(pid)}-{_namespace()}"
    return f"{prefix}-{process}-{next(_numbers)}"


def remove_abandoned(parent: str | None, prefix: str) -> None:
    """Remove such folders of processes of this host that have ended."""
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
    """When a process started, in the kernel's ticks, which the clock does not change; "" if it is
    not there. With its number it is one of a kind.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _namespace() -> str:
    """That of process numbers: containers may share a folder and the host's name."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"
