"""The frames of a connection after its handshake, numbered and authenticated with a key per
direction.

A frame is a head (length, tag), the content, and a tail (tag). The head's tag covers the frame's
number and length, so only lengths that the peer has sent are trusted. The tail's tag also covers
the content. A frame that was changed, injected, repeated, omitted, reordered or reflected has a
wrong tag.

Tags are keyed BLAKE2s, which costs a microsecond for a short frame, whereas HMAC costs four.
BLAKE2s is slow for long contents, which are therefore hashed with SHA-256 first.
"""

from __future__ import annotations

import socket
import struct

# hashlib and hmac have both too, but load OpenSSL, which takes milliseconds at each start.
from _blake2 import blake2s
from _operator import _compare_digest as compare_digest
from collections.abc import Sequence
from typing import Any, Protocol

from farandole.errors import PeerLostError, WireError

TAG = 16
ANY_SIZE = 1 << 40  # bytes: for contents whose size only the sender limits
PIECE = 1 << 20  # bytes: memory grows by pieces as they arrive, not to the announced length
_SHORT = 1 << 12
_LENGTH = struct.Struct("<Q")
_PLACE = struct.Struct("<QQ")  # number, length
HEAD = _LENGTH.size + TAG

RECORDS = range(0x14, 0x18)  # first bytes of TLS messages; no nonce begins with one

Content = bytes | bytearray | memoryview


class TamperedError(OSError):
    """The received bytes were not encrypted by the peer."""


class Stream(Protocol):
    """Moves the bytes of a connection. It has the methods and errors of a socket, and may be
    one.
    """

    def send(self, data: Any, /) -> int: ...
    def sendmsg(self, buffers: Sequence[Any], /) -> int: ...
    def sendall(self, data: Any, /) -> None: ...
    def recv(self, count: int, /) -> bytes: ...
    def recv_into(self, buffer: Any, /) -> int: ...
    def recvmsg_into(self, buffers: Sequence[Any], /) -> tuple[int, Any, Any, Any]: ...


class Direction:
    """One direction of a connection: its key and its frame counter. Each end has one object per
    direction.
    """

    def __init__(self, key: bytes) -> None:
        self._keyed = blake2s(key=key)
        self._number = 0
        self._awaited: tuple[int, blake2s] | None = None  # the frame whose head has been read

    def seal(self, content: Content) -> tuple[bytes, bytes]:
        """Return head and tail of the next frame."""
        length = len(content)
        state = self._begin(length)
        head = _LENGTH.pack(length) + state.digest()[:TAG]
        self._number += 1
        return head, _tail(state, content)

    def envelope(self, length: int) -> tuple[bytes, bytes]:
        """Return head and tail of the next frame if only its number and length are
        authenticated, not its content.
        """
        tags = self._begin(length).digest()
        self._number += 1
        return _LENGTH.pack(length) + tags[:TAG], tags[TAG:]

    def length(self, head: Content) -> int | None:
        """Return the next frame's length from its head; None if the head is invalid."""
        (length,) = _LENGTH.unpack_from(head)
        state = self._begin(length)
        if not compare_digest(state.digest()[:TAG], head[_LENGTH.size :]):
            return None
        self._awaited = length, state
        return int(length)

    def opens(self, content: Content, tail: Content) -> bool:
        """Return whether this is the content of the frame whose head was passed to ``length``.
        This completes the frame.
        """
        assert self._awaited is not None
        length, state = self._awaited
        right = length == len(content) and compare_digest(_tail(state, content), tail)
        self._number += 1
        return right

    def instead(self, head: Content) -> int | None:
        """Return the length of the frame that the peer sent in place of the last ``envelope``;
        None if its head is invalid.
        """
        self._number -= 1
        length = self.length(head)
        self._number += 1
        return length

    def _begin(self, length: int) -> blake2s:
        state = self._keyed.copy()
        state.update(_PLACE.pack(self._number, length))
        return state


def _tail(state: blake2s, content: Content) -> bytes:
    if len(content) > _SHORT:
        from hashlib import sha256

        content = sha256(content).digest()
    state.update(content)
    return state.digest()[TAG:]


class Session:
    """One end of an authenticated connection.

    ``peer`` is the other end's name for messages. ``stream`` moves the bytes over ``sock``; by
    default, ``sock`` does so itself.
    """

    def __init__(
        self,
        sock: socket.socket,
        outgoing: bytes,
        incoming: bytes,
        peer: str = "the peer",
        stream: Stream | None = None,
    ) -> None:
        self.sock = sock
        self.peer = peer
        self.stream: Stream = stream or sock
        self.outgoing = Direction(outgoing)
        self.incoming = Direction(incoming)

    def send(self, content: Content) -> None:
        """Send one frame."""
        head, tail = self.outgoing.seal(content)
        if len(content) <= 1 << 16:
            self.stream.sendall(b"".join((head, content, tail)))
        else:
            for part in (head, content, tail):
                self.stream.sendall(part)

    def receive(self, limit: int) -> bytearray | None:
        """Receive one frame of at most ``limit`` bytes; None if the peer closed the connection
        before it.

        Raises WireError for invalid messages, and PeerLostError if the connection closes within a
        frame.
        """
        try:
            return self._receive(limit)
        except TamperedError as error:
            raise self.tampered() from error

    def _receive(self, limit: int) -> bytearray | None:
        head = recv_exactly(self.stream, HEAD, allow_end=True)
        if head is None:
            return None
        length = self.incoming.length(head)
        if length is None:
            raise self.tampered()
        if length > limit:
            raise WireError(
                f"{self.peer} announced a message of {length} bytes; the limit is {limit}"
            )
        content = recv_exactly(self.stream, length)
        tail = recv_exactly(self.stream, TAG)
        if content is None or tail is None or not self.incoming.opens(content, tail):
            raise self.tampered()
        return content

    def tampered(self, rank: int = -1) -> WireError:
        """Return the error for received bytes that the peer did not send."""
        return WireError(
            f"the connection to {self.peer} delivered bytes that it did not send: they were"
            " changed, injected, repeated or dropped on the way, or by another process with"
            " access to the socket",
            rank,
        )

    def close(self) -> None:
        self.sock.close()


def recv_exactly(stream: Stream, count: int, *, allow_end: bool = False) -> bytearray | None:
    """Return ``count`` bytes; None if the connection was closed before the first one and
    ``allow_end``.
    """
    data, filled = bytearray(), 0
    while filled < count:
        if filled == len(data):
            data += bytes(min(PIECE, count - filled))
        with memoryview(data) as view, view[filled:] as rest:
            got = stream.recv_into(rest)
        if got == 0:
            if allow_end and not filled:
                return None
            raise PeerLostError("the peer closed the connection in the middle of a message")
        filled += got
    return data
