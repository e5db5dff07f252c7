"""A barrier of the ranks of one host, run before calls that wait silently for all ranks, like
MPI_Init.

Each rank listens on an abstract Unix socket and notifies the ranks that are already listening. Of
any two ranks, the later one reaches the earlier one, so no rank has to retry.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from _blake2 import blake2s  # see the handshake

from farandole.errors import RendezvousError
from farandole.job.bootstrap.siblings import LOOK, Siblings
from farandole.job.config import Placement

_RANK = struct.Struct("<I")
_PEER = struct.Struct("3i")  # struct ucred: pid, user, group
# Seconds for a connected rank to identify itself; on a busy machine the rank may be delayed.
_SAY = 10.0


def wait(placement: Placement, timeout: float, siblings: Siblings) -> None:
    """Wait until all ranks of this host have arrived; ``siblings`` are these ranks.

    Does nothing if the ranks cannot be seen, because each may be in its own container. Raises
    RendezvousError naming the ranks that have ended or do not arrive within ``timeout`` seconds.
    """
    own = number(placement)
    missing = set(range(placement.local_size)) - {own}
    if not missing or not siblings.job:
        return
    host = "" if is_only_host(placement) else placement.hostname
    deadline = time.monotonic() + timeout
    with _listener(siblings.job, own, placement) as listener:
        missing -= {peer for peer in missing if _announce(siblings.job, peer, own)}
        while missing:
            listener.settimeout(max(0.001, min(LOOK, deadline - time.monotonic())))
            with contextlib.suppress(TimeoutError):
                if (peer := _next_arrival(listener)) in missing:
                    missing.discard(peer)
                    continue
            if ended := missing.intersection(siblings.ended()):
                raise RendezvousError.ended(sorted(ended), host)
            if time.monotonic() >= deadline:
                raise RendezvousError.late(sorted(missing), timeout, host)


def is_only_host(placement: Placement) -> bool:
    """Return whether all ranks of the job are on this host."""
    return placement.local_size == placement.size


def number(placement: Placement) -> int:
    """Return this process's number in the barrier: its rank on the only host, which may differ from
    its local rank (Open MPI), else its local rank.
    """
    return placement.rank if is_only_host(placement) else placement.local_rank


def _name(job: str, rank: int) -> str:
    place = f"{os.geteuid()}|{job}|{rank}".encode()
    return f"\0farandole-{blake2s(place, digest_size=16).hexdigest()}"


def _listener(job: str, own: int, placement: Placement) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_name(job, own))
        listener.listen(placement.local_size)
    except OSError as error:
        listener.close()
        raise RendezvousError(
            f"rank {placement.rank} cannot listen for the other ranks of this host: {error}"
        ) from error
    return listener


def _announce(job: str, peer: int, own: int) -> bool:
    """Notify ``peer`` of this rank's arrival; False if it is not listening yet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, contextlib.suppress(OSError):
        sock.settimeout(_SAY)
        sock.connect(_name(job, peer))
        if _is_ours(sock):
            sock.sendall(_RANK.pack(own))
            return True
    return False


def _next_arrival(listener: socket.socket) -> int:
    """Return the number of the rank that announces itself, or -1 for an unknown peer. Raises
    TimeoutError.
    """
    sock, _ = listener.accept()
    with sock:
        sock.settimeout(_SAY)
        with contextlib.suppress(OSError, struct.error):
            return int(_RANK.unpack(sock.recv(_RANK.size))[0]) if _is_ours(sock) else -1
    return -1


def _is_ours(sock: socket.socket) -> bool:
    """Return whether the peer process belongs to this user."""
    _, user, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(user == os.geteuid())
