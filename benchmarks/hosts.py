"""Hosts on one machine, for ``--hosts``: network namespaces on a bridge, with links of a given
rate. They are the test kit's hosts, whose init waits for the end of a pipe, so they always end with
this process.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from farandole.base.types import Slot
from farandole.job.launch.plan import plan
from farandole.net.store import StoreServer

_CLONE_NEWNET = 0x40000000
DEVICE = "eth0"  # of every host


def obstacle(ssh: bool = False) -> str:
    """Return why hosts (``ssh``: with sshd) cannot be made here; empty if they can."""
    try:
        from tests.kits import hosts
    except ImportError as error:
        return f"the test kit for hosts cannot be imported ({error}): pip install -e '.[dev]'"
    return hosts.obstacle(ssh=ssh)


@contextmanager
def made(number: int, rate: str, delay: float = 0.0) -> Iterator[Sequence[Any]]:
    """Make ``number`` hosts.

    ``rate``: the rate of each link in each direction, in the notation of tc; empty: no limit.
    ``delay``: the latency between two hosts in seconds.
    """
    from tests.kits import hosts

    with hosts.hosts(number, rate, ssh=False, delay=delay) as found:
        # the hosts hold its files open, so nothing is left if this process is killed
        shutil.rmtree(found.folder)
        yield list(found)


def slots(size: int, number: int) -> tuple[Slot, ...]:
    """Return the slots of ``size`` ranks, contiguous on each host; the first hosts have one
    more.
    """
    base, extra = divmod(size, number)
    return plan([(f"host{index}", base + (index < extra)) for index in range(number)], size)


def store_on(host: Any, secret: str) -> StoreServer:
    """Return a store of this process that listens on ``host``'s network."""
    enter = ctypes.CDLL(None, use_errno=True).setns
    with open("/proc/thread-self/ns/net") as own, open(f"/proc/{host.pid}/ns/net") as other:
        if enter(other.fileno(), _CLONE_NEWNET):  # of this thread, until the store has a socket
            raise OSError(ctypes.get_errno(), "cannot enter the network of a host")
        try:
            return StoreServer(secret, host=host.address)
        finally:
            if enter(own.fileno(), _CLONE_NEWNET):
                os.abort()  # otherwise this thread would continue in the wrong network
