"""Hosts on one machine, for ``--hosts``: network namespaces on a bridge, of a set speed. They end
with this process, however it ends, since they are the test kit's hosts, whose init waits for the
end of a pipe.
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
    """Why no hosts (``ssh``: with sshd) can be made here; empty if they can."""
    try:
        from tests.kits import hosts
    except ImportError as error:
        return f"the test kit for hosts cannot be imported ({error}): pip install -e '.[dev]'"
    return hosts.obstacle(ssh=ssh)


@contextmanager
def made(number: int, rate: str, delay: float = 0.0) -> Iterator[Sequence[Any]]:
    """So many hosts. ``rate``: of each link, in each direction, as tc writes it; empty: no limit.
    ``delay``: seconds from one to another.
    """
    from tests.kits import hosts

    with hosts.hosts(number, rate, ssh=False, delay=delay) as found:
        # what the hosts need of it they hold: nothing is left when we are killed
        shutil.rmtree(found.folder)
        yield list(found)


def slots(size: int, number: int) -> tuple[Slot, ...]:
    """The places of ``size`` ranks on so many hosts, neighbours together; the first hosts have one
    more.
    """
    base, extra = divmod(size, number)
    return plan([(f"host{index}", base + (index < extra)) for index in range(number)], size)


def store_on(host: Any, secret: str) -> StoreServer:
    """A store that listens on ``host``'s network, of this process."""
    enter = ctypes.CDLL(None, use_errno=True).setns
    with open("/proc/thread-self/ns/net") as own, open(f"/proc/{host.pid}/ns/net") as other:
        if enter(other.fileno(), _CLONE_NEWNET):  # of this thread, until the store has its socket
            raise OSError(ctypes.get_errno(), "cannot enter the network of a host")
        try:
            return StoreServer(secret, host=host.address)
        finally:
            if enter(own.fileno(), _CLONE_NEWNET):
                os.abort()  # this thread would go on in the wrong network
