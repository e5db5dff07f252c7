"""A barrier of the ranks of one host, before they call what waits for all ranks without a word, as
MPI_Init does.

Each rank listens on an abstract Unix socket, and tells those that listen already that it is there.
Of any two ranks the one that listens later reaches the other, so nobody asks twice.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from _blake2 import blake2s  # see handshake

from farandole.errors import RendezvousError
from farandole.job.bootstrap.siblings import LOOK, Siblings
from farandole.job.config import Placement

_RANK = struct.Struct("<I")
_PEER = struct.Struct("3i")  # struct ucred: process, user, group
# seconds in which who has connected must say who it is: on a busy machine a rank may stand still
# meanwhile
_SAY = 10.0


def wait(placement: Placement, timeout: float, siblings: Siblings) -> None:
    """Until all ranks of this host are here. ``siblings``: those, by local rank. No barrier where
    they cannot be seen: each rank may be in a container of its own.

    Raises RendezvousError naming those that have ended, or do not come within ``timeout`` seconds.
    """
    missing = set(range(placement.local_size)) - {placement.local_rank}
    if not missing or not siblings.job:
        return
    alone = placement.local_size == placement.size  # a local rank is the rank then
    host, deadline = "" if alone else placement.hostname, time.monotonic() + timeout
    with _listener(siblings.job, placement) as listener:
        missing -= {peer for peer in missing if _announce(siblings.job, peer, placement.local_rank)}
        while missing:
            listener.settimeout(max(0.001, min(LOOK, deadline - time.monotonic())))
            with contextlib.suppress(TimeoutError):
                if (peer := _came(listener)) in missing:
                    missing.discard(peer)
                    continue
            if ended := missing.intersection(siblings.ended()):
                raise RendezvousError.ended(sorted(ended), host)
            if time.monotonic() >= deadline:
                raise RendezvousError.late(sorted(missing), timeout, host)


def _name(job: str, rank: int) -> str:
    place = f"{os.geteuid()}|{job}|{rank}".encode()
    return f"\0farandole-{blake2s(place, digest_size=16).hexdigest()}"


def _listener(job: str, placement: Placement) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_name(job, placement.local_rank))
        listener.listen(placement.local_size)
    except OSError as error:
        listener.close()
        raise RendezvousError(
            f"rank {placement.rank} cannot listen for the other ranks of this host: {error}"
        ) from error
    return listener


def _announce(job: str, peer: int, own: int) -> bool:
    """Tell ``peer`` that we are there; False if it does not listen yet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, contextlib.suppress(OSError):
        sock.settimeout(_SAY)
        sock.connect(_name(job, peer))
        if _is_ours(sock):
            sock.sendall(_RANK.pack(own))
            return True
    return False


def _came(listener: socket.socket) -> int:
    """The local rank that says that it is there; -1 for anything else. Raises TimeoutError."""
    sock, _ = listener.accept()
    with sock:
        sock.settimeout(_SAY)
        with contextlib.suppress(OSError, struct.error):
            return int(_RANK.unpack(sock.recv(_RANK.size))[0]) if _is_ours(sock) else -1
    return -1


def _is_ours(sock: socket.socket) -> bool:
    """Is the other end a process of this user?"""
    _, user, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(user == os.geteuid())
