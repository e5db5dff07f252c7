"""The process that started the ranks of this host (mpirun, torchrun, slurmstepd): the ranks end
when it does.

It usually ends its ranks, but not if it was killed: Farandole's ranks exchange data directly, so
the loss of mpirun does not affect them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time

_LOOK = 1.0  # seconds between checks where the kernel has no pidfd


def watch(pid: int, rank: int, grace: float) -> None:
    """End this process soon after the process ``pid`` has ended: by SIGTERM and, ``grace`` seconds
    later, by SIGKILL. Does nothing for pid 0 (unknown).
    """
    if not pid:
        return
    try:
        handle = os.pidfd_open(pid)
    except OSError:  # a kernel before 5.3, or the process has just ended
        handle = -1
    threading.Thread(
        target=_follow, args=(pid, handle, rank, grace), name="farandole-starter", daemon=True
    ).start()


def _follow(pid: int, handle: int, rank: int, grace: float) -> None:
    name = _name(pid)
    if handle >= 0:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        waiting.poll()
        os.close(handle)
    else:
        while _name(pid) == name != "":
            time.sleep(_LOOK)
    with contextlib.suppress(OSError, ValueError):  # mpirun held the other end of the pipe
        sys.stderr.write(
            f"farandole: rank {rank} ends, because {name or 'the process'} (pid {pid}), which had"
            " started it, was killed.\n"
        )
        sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os.kill(os.getpid(), signal.SIGKILL)


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""
