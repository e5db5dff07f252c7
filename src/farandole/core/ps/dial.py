"""Connections to a parameter server: a Unix socket on its host, TCP from other hosts."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from farandole.core.ps.wire import PURPOSE
from farandole.errors import HorovodInternalError
from farandole.net import liveness
from farandole.net.handshake import Session, authenticate, derive

SECONDS = 10.0
ROOM = 1 << 20  # send buffer of a Unix socket, in bytes


def unix_name(secret: str, token: str) -> str:
    """Return the name of a server's Unix socket, which cannot be computed without the secret."""
    return "\0farandole-" + derive(secret, f"ps|{token}")


def dial(
    address: dict[str, Any],
    host: str,
    secret: str,
    seconds: float = SECONDS,
    purpose: str = PURPOSE,
) -> Session:
    """Connect to a server and prove the secret.

    - ``address``: The address published by the server.
    - ``host``: The address of the job's store, where this host also reaches the servers.
    - ``seconds``: The timeout of the connection and of the proof.

    Raises OSError and AuthenticationError.
    """
    sock = _near(unix_name(secret, str(address["unix"]))) or liveness.connected(
        host, int(address["port"]), seconds
    )
    try:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            liveness.probe(sock)
        return authenticate(sock, secret, purpose, server=False, seconds=seconds)
    except BaseException:
        sock.close()
        raise


def reach(address: dict[str, Any], host: str, secret: str, seconds: float = SECONDS) -> Session:
    """Connect to a parameter server: on the driver's host (``host``: the address of the job's
    store), or on a different host, whose addresses are tried in turn. Raises the same errors as
    ``dial``.
    """
    at = [[host, address["port"]]] if address.get("on_driver_host", True) else address["at"]
    for name, port in at[:-1]:
        with contextlib.suppress(OSError, HorovodInternalError):
            return dial({**address, "port": port}, name, secret, seconds)
    return dial({**address, "port": at[-1][1]}, at[-1][0], secret, seconds)


def _near(name: str) -> socket.socket | None:
    """Return a connection to a server on this host; None if it is on a different host."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        sock.connect(name)
        return sock
    sock.close()
    return None
