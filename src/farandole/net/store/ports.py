"""A port for what will listen later: torch.distributed's store on rank 0."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

_GIVEN = "/proc/sys/net/ipv4/ip_local_port_range"
_ASIDE = range(20_000, 30_000)  # above them are those that Kubernetes gives to its services
_TRIES = 20


def free_port() -> int:
    """A port of this host that nobody listens on.

    It is used seconds later, when PyTorch has been imported. So it is one, if any is free, that the
    kernel does not give to connections and to who listens on any port: those of this job, and of
    others that start beside it.
    """
    for port in _aside():
        with contextlib.suppress(OSError):
            return _bound(port)
    return _bound(0)


def _aside() -> Sequence[int]:
    try:
        with open(_GIVEN) as file:
            lowest, highest = map(int, file.read().split())
    except (OSError, ValueError):
        return ()
    others = [port for port in _ASIDE if not lowest <= port <= highest]
    return [
        others[int.from_bytes(os.urandom(4), "little") % len(others)]
        for _ in range(_TRIES if others else 0)
    ]


def _bound(port: int) -> int:
    with socket.socket() as sock:
        sock.bind(("", port))
        return int(sock.getsockname()[1])
