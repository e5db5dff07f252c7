"""Free ports for later listeners, such as torch.distributed's store on rank 0."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

_GIVEN = "/proc/sys/net/ipv4/ip_local_port_range"
_PREFERRED = range(20_000, 30_000)  # below the range that Kubernetes gives to its services
_TRIES = 20


def free_port() -> int:
    """Return a port of this host that is not in use.

    It is needed only seconds later, after PyTorch's import. Therefore the port is, if possible,
    outside the range from which the kernel assigns ports to connections and listeners of this job
    and of other jobs that are starting.
    """
    for port in _preferred():
        with contextlib.suppress(OSError):
            return _bound(port)
    return _bound(0)


def _preferred() -> Sequence[int]:
    try:
        with open(_GIVEN) as file:
            lowest, highest = map(int, file.read().split())
    except (OSError, ValueError):
        return ()
    others = [port for port in _PREFERRED if not lowest <= port <= highest]
    return [
        others[int.from_bytes(os.urandom(4), "little") % len(others)]
        for _ in range(_TRIES if others else 0)
    ]


def _bound(port: int) -> int:
    with socket.socket() as sock:
        sock.bind(("", port))
        return int(sock.getsockname()[1])
