"""Shared memory between the ranks of one host: the fastest wire, and nothing left behind.

Ranks meet on abstract Unix sockets named by the job's secret (``rendezvous``), hand each other
anonymous memory (``memory``), and from then on talk through flags in it (``segment``, ``futex``,
``board``). Ordinary tensors go through small slots (``pipeline``), allocated ones are reduced in
place (``registered``).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from farandole.base.contracts import End
from farandole.base.host import cores
from farandole.core.transports.shm.pipeline import staging
from farandole.core.transports.shm.rendezvous import ShmRendezvous
from farandole.core.transports.shm.segment import SMALL, Segment
from farandole.core.transports.shm.transport import ShmTransport

# Bytes of slots per rank. Measured on 2 cores with 2 MiB of second-level cache each: what is under
# way should fit into it, and every chunk costs two waits; 128 KiB to 256 KiB are best, and with
# four ranks on two cores it hardly matters.
_LARGEST_CHUNK, _SMALLEST_CHUNK = 256 << 10, 64 << 10
_BUDGET = 18 * _LARGEST_CHUNK


def connect(
    rank: int,
    size: int,
    secret: str,
    scope: str,
    timeout: float = 30.0,
    *,
    patience: float = 600.0,
    parent: Segment | None = None,
    names: Sequence[int] = (),
) -> ShmTransport:
    """The transport of ``rank`` among ``size`` ranks of this host. Collective.

    ``scope`` tells apart the transports of one job; all ranks give the same. Raises RendezvousError
    naming the ranks that did not come within ``timeout`` seconds. ``patience``: seconds to wait for
    a rank inside a collective; ``names``: what messages and errors call the ranks, if not by their
    numbers here.
    """
    peers = ShmRendezvous(rank, size, secret, scope, names).gather(timeout) if size > 1 else {}
    return join(rank, size, secret, scope, peers, patience=patience, parent=parent, names=names)


def join(
    rank: int,
    size: int,
    secret: str,
    scope: str,
    peers: dict[int, socket.socket],
    *,
    patience: float = 600.0,
    parent: Segment | None = None,
    names: Sequence[int] = (),
) -> ShmTransport:
    """The transport over sockets that a ``ShmRendezvous`` has made: one to every other rank.
    Collective.
    """
    chunk = _BUDGET // staging(size, 1) // 4096 * 4096
    chunk = max(_SMALLEST_CHUNK, min(_LARGEST_CHUNK, chunk))
    try:
        segment = Segment(
            rank,
            size,
            peers,
            staging(size, chunk),
            crowded=size > cores(),
            patience=patience,
            parent=parent,
            names=names,
        )
        return ShmTransport(segment, chunk, scope, secret)
    # whoever keeps it keeps all that is named here: the others would wait in vain
    except BaseException:
        for sock in peers.values():
            sock.close()
        raise


def wire(end: End) -> ShmTransport:
    """See ``contracts.Wire``."""
    return connect(end.rank, end.size, end.secret, end.scope, end.timeout, names=end.names)


__all__ = ["SMALL", "ShmRendezvous", "ShmTransport", "connect", "join", "wire"]
