"""Ends a job's processes when the driver cannot: one tiny process per job and host.

It holds a pipe from the driver. The driver names the process groups it starts (``+1234``), those that are gone
(``-1234``), and says ``bye`` in the end. If the pipe closes without that, the driver was killed: the groups get
SIGTERM, and what is left of them SIGKILL. Only the standard library's quick parts: it runs with ``python -I -S``.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

GRACE = 2.0  # seconds between SIGTERM and SIGKILL


def members(groups: set[int]) -> list[int]:
    """The living processes (zombies are not) of these process groups."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # pid (name) state ppid pgrp ...; the name may hold spaces and brackets
                    state, _, group = file.read().rpartition(b")")[2].split()[:3]
            except OSError:
                continue
            if int(group) in groups and state not in (b"Z", b"X"):
                found.append(int(name))
    return found


def strays(mark: str) -> list[int]:
    """Processes with ``mark`` (NAME=value) in their environment: what left its process group but not the job."""
    wanted = mark.encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                continue
    return found


def signal_group(group: int, number: int) -> bool:
    """Send a signal; False when no process of the group exists any more."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def sweep(mark: str) -> None:
    """Kill the strays, and what they start meanwhile."""
    for _ in range(5):
        found = strays(mark)
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.02)


def end(groups: set[int], mark: str) -> None:
    """SIGTERM, a grace, SIGKILL; then the strays."""
    for group in groups:
        signal_group(group, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline and members(groups):
        time.sleep(0.05)
    for group in groups:
        signal_group(group, signal.SIGKILL)
    sweep(mark)


def watch(mark: str) -> None:
    """Read the driver's words until it says bye or goes away."""
    groups: set[int] = set()
    parent, text = os.getppid(), ""
    while os.getppid() == parent:  # another process may hold a copy of the pipe, so its end is not enough
        if not select.select([0], [], [], 1.0)[0]:
            continue
        data = os.read(0, 65536).decode()
        if not data:
            break
        *words, text = (text + data).split("\n")
        for word in words:
            if word == "bye":
                return
            (groups.add if word[0] == "+" else groups.discard)(int(word[1:]))
    end(groups, mark)


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    watch(sys.argv[1])
