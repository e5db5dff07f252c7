"""One handshake for every socket of a job, and the frames that follow it.

Challenge-response with the job's secret (HMAC-SHA256, both directions): each side proves that it knows the secret by
signing both sides' fresh nonces, so a recorded handshake is worthless. All messages before trust have a fixed size:
nothing that a stranger sends is parsed, no length of his is believed, and he has ``seconds`` to finish.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time

from farandole.errors import AuthenticationError, PeerLostError

NONCE = 32
MAC = 32
MAX_FRAME = 1 << 40
_LENGTH = struct.Struct("<Q")


def new_secret() -> str:
    """A fresh secret for one job, in hex."""
    return os.urandom(32).hex()


def derive(secret: str, purpose: str) -> str:
    """A name (32 hex digits) that only those who know the secret can guess."""
    return hmac.digest(_key(secret), purpose.encode(), "sha256").hex()[:32]


def _key(secret: str) -> bytes:
    try:
        return bytes.fromhex(secret)
    except ValueError:
        raise AuthenticationError(
            "the job's secret (FARANDOLE_SECRET) must be hexadecimal digits, as farandole.handshake.new_secret() gives"
        ) from None


def authenticate(sock: socket.socket, secret: str, purpose: str, *, server: bool, seconds: float = 5.0) -> None:
    """Prove both ends to each other, or raise AuthenticationError. ``purpose`` keeps sockets of one job apart."""
    deadline = time.monotonic() + seconds
    mine = os.urandom(NONCE)
    key = _key(secret)

    def sign(role: str, client: bytes, accepting: bytes) -> bytes:
        return hmac.digest(key, f"{role}|{purpose}|".encode() + client + accepting, "sha256")

    try:
        if server:
            theirs = _read(sock, NONCE, deadline)
            sock.sendall(mine)
            if not hmac.compare_digest(_read(sock, MAC, deadline), sign("client", theirs, mine)):
                raise AuthenticationError(f"a peer on the {purpose} socket does not know the job's secret")
            sock.sendall(sign("server", theirs, mine))
        else:
            sock.sendall(mine)
            theirs = _read(sock, NONCE, deadline)
            sock.sendall(sign("client", mine, theirs))
            if not hmac.compare_digest(_read(sock, MAC, deadline), sign("server", mine, theirs)):
                raise AuthenticationError(f"the {purpose} server does not know the job's secret")
        sock.settimeout(None)
    except (OSError, PeerLostError) as error:
        if isinstance(error, AuthenticationError):
            raise
        raise AuthenticationError(f"handshake on the {purpose} socket failed: {error}") from error


def _read(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise AuthenticationError("the peer did not finish its handshake in time")
        sock.settimeout(left)
        piece = sock.recv(count - len(data))
        if not piece:
            raise AuthenticationError("the peer hung up during the handshake")
        data += piece
    return data


def send_frame(sock: socket.socket, payload: bytes | memoryview) -> None:
    """Send one length-prefixed message (after the handshake)."""
    if len(payload) < 1 << 16:
        sock.sendall(_LENGTH.pack(len(payload)) + payload)
    else:
        sock.sendall(_LENGTH.pack(len(payload)))
        sock.sendall(payload)


def recv_frame(sock: socket.socket) -> bytearray | None:
    """Receive one message; None when the peer hung up between messages. Raises PeerLostError in the middle of one."""
    header = recv_exactly(sock, _LENGTH.size, allow_end=True)
    if header is None:
        return None
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME:
        raise PeerLostError(f"a peer announced a message of {length} bytes; the limit is {MAX_FRAME}")
    return recv_exactly(sock, length)


def recv_exactly(sock: socket.socket, count: int, *, allow_end: bool = False) -> bytearray | None:
    """``count`` bytes; None if the peer hung up before the first one and ``allow_end``."""
    data = bytearray(count)
    view, filled = memoryview(data), 0
    while filled < count:
        got = sock.recv_into(view[filled:])
        if got == 0:
            if allow_end and filled == 0:
                return None
            raise PeerLostError("the peer hung up in the middle of a message")
        filled += got
    return data
