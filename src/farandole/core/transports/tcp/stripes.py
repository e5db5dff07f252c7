"""One stream of bytes over several connections to a rank, for links that one connection does not
fill.

Blocks go round the connections, so both ends know by the number of bytes alone which of them has
the next one: nothing is added to what is sent. A connection that is slower than the others holds
them up.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from farandole.net.handshake import Session, Stream

# bytes: what TLS encrypts at a time, and little beside what the kernel holds of a connection
BLOCK = 1 << 17


class Stripes:
    """See ``handshake.Stream``. ``sessions``: of the connections, in the same order at both
    ends.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._streams: list[Stream] = [session.stream for session in sessions]
        self._socks = [session.sock for session in sessions]
        self._sent = self._received = 0  # bytes

    @property
    def outlet(self) -> socket.socket:
        """What takes the next byte."""
        return self._socks[self._turn(self._sent)]

    @property
    def inlet(self) -> socket.socket:
        """What brings the next byte."""
        return self._socks[self._turn(self._received)]

    def send(self, data: Any) -> int:
        return self.sendmsg((data,))

    def sendmsg(self, buffers: Sequence[Any]) -> int:
        count = self._streams[self._turn(self._sent)].sendmsg(
            front(buffers, BLOCK - self._sent % BLOCK)
        )
        self._sent += count
        return count

    def recv(self, count: int) -> bytes:
        data = self._streams[self._turn(self._received)].recv(
            min(count, BLOCK - self._received % BLOCK)
        )
        self._received += len(data)
        return data

    def recv_into(self, buffer: Any) -> int:
        return self.recvmsg_into((buffer,))[0]

    def recvmsg_into(self, buffers: Sequence[Any]) -> tuple[int, Any, Any, Any]:
        """The number of bytes is the first of four, as with sockets; the next block may have come
        although it is less than there is room for.
        """
        stream = self._streams[self._turn(self._received)]
        got = stream.recvmsg_into(front(buffers, BLOCK - self._received % BLOCK))
        self._received += got[0]
        return got

    def _turn(self, count: int) -> int:
        """The connection of the byte after so many."""
        return count // BLOCK % len(self._streams)


def front(parts: Sequence[Any], room: int) -> list[Any]:
    """The first ``room`` bytes of ``parts``, or all of them."""
    some = []
    for part in parts:
        some.append(part[:room])
        room -= len(part)
        if room <= 0:
            break
    return some
