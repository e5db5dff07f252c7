"""The kernel's information on the process of a silent rank."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket

from farandole.base.host import namespace

_STATES = {
    "T": "is stopped (SIGSTOP, or Ctrl-Z in its terminal; SIGCONT resumes it)",
    "t": "is stopped by a debugger",
    "D": "is in uninterruptible I/O (a disk or a network file system that does not answer)",
    "R": "is running code that holds Python's lock, or is exiting",
    "S": "sleeps in code that holds Python's lock, or is exiting",
    "Z": "has died",
}


def here() -> bytes:
    """Return the entry by which other ranks can examine this process."""
    return json.dumps([os.getpid(), socket.gethostname(), namespace("pid")]).encode()


def why_silent(where: bytes | None) -> str:
    """Return why a rank does not answer. ``where``: the rank's entry from ``here``."""
    if where is None:
        return "the location of its process is unknown"
    pid, host, space = json.loads(where)
    if space != namespace("pid"):
        return f"its process {pid} on {host} is stopped, or the network is down"
    return f"its process {pid} {state(pid)}"


def state(pid: int) -> str:
    """Return the activity of a process of this host as text."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            letter = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "is gone"
    text = _STATES.get(letter, f"does not answer (state {letter})")
    swapped = _swapped(pid)
    return f"{text}; {swapped >> 10} MiB are swapped out" if swapped >= 1 << 10 else text


def _swapped(pid: int) -> int:
    """Return the KiB of a process in swap space."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        found = re.search(r"^VmSwap:\s+(\d+) kB", file.read(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0
