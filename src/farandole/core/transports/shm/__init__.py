"""Shared memory between the ranks of one host: the fastest transport, which leaves no files behind.

Ranks connect through abstract Unix sockets with names derived from the job's secret
(``rendezvous``), and pass each other anonymous memory (``memory``). They communicate through flags
in this memory (``segment``, ``futex``, ``board``). Ordinary tensors pass through small slots
(``pipeline``); tensors in allocated memory are reduced in place (``registered``).
"""

from __future__ import annotations

from farandole.base.contracts import End
from farandole.core.transports.shm.memory import is_available
from farandole.core.transports.shm.rendezvous import ShmRendezvous
from farandole.core.transports.shm.segment import SMALL
from farandole.core.transports.shm.transport import ShmTransport, connect, join


def wire(end: End) -> ShmTransport:
    """See ``contracts.Wire``."""
    return connect(end.rank, end.size, end.secret, end.scope, end.timeout, names=end.names)


__all__ = ["SMALL", "ShmRendezvous", "ShmTransport", "connect", "is_available", "join", "wire"]
