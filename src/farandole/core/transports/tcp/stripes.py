"""One byte stream over several connections to a rank, for networks that one connection does not
saturate.

Blocks use the connections in turn, so the byte count determines the connection of the next block,
without a header. A slow connection delays the others.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from farandole.net.handshake import Session, Stream

# bytes: the unit of TLS encryption, and small compared with the kernel's buffers of a connection
BLOCK = 1 << 17


class Stripes:
    """See ``handshake.Stream``. ``sessions``: one for each connection, in the same order at both
    ends.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._streams: list[Stream] = [session.stream for session in sessions]
        self._socks = [session.sock for session in sessions]
        self._sent = self._received = 0  # bytes

    @property
    def outlet(self) -> socket.socket:
        """The connection that takes the next byte."""
        return self._socks[self._turn(self._sent)]

    @property
    def inlet(self) -> socket.socket:
        """The connection with the next byte."""
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
        """Receive into ``buffers``. Return four values as sockets do; the first is the number of
        bytes.

        A partly filled buffer does not mean that no more bytes are available: the next block may
        have arrived.
        """
        stream = self._streams[self._turn(self._received)]
        got = stream.recvmsg_into(front(buffers, BLOCK - self._received % BLOCK))
        self._received += got[0]
        return got

    def _turn(self, count: int) -> int:
        """Return the index of the connection for the byte after ``count`` bytes."""
        return count // BLOCK % len(self._streams)


def front(parts: Sequence[Any], room: int) -> list[Any]:
    """Return the first ``room`` bytes of ``parts``, or all of them."""
    some = []
    for part in parts:
        some.append(part[:room])
        room -= len(part)
        if room <= 0:
            break
    return some
