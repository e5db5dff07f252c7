"""Both ends of a connection prove that they know the job's secret.

Challenge-response with the job's secret (HMAC-SHA256, both directions): each side proves that it knows the secret by
signing both sides' fresh nonces, so a recorded handshake is worthless. All messages before trust have a fixed size:
nothing that a stranger sends is parsed, no length of his is believed, and he has ``seconds`` to finish; of these,
``SILENCE`` to begin. The keys of the session that follows come from the secret and both nonces: a relay between two
that know the secret does not have them.
"""

from __future__ import annotations

import hmac
import os
import socket
import time

from farandole.errors import AuthenticationError, UnfinishedHandshakeError
from farandole.handshake.session import Session

NONCE = 32
MAC = 32
SILENCE = 2.0  # seconds in which the first byte must come: who has connected sends it at once


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


def authenticate(sock: socket.socket, secret: str, purpose: str, *, server: bool, seconds: float = 5.0) -> Session:
    """Prove both ends to each other, or raise AuthenticationError. ``purpose`` keeps sockets of one job apart."""
    deadline = time.monotonic() + seconds
    mine = os.urandom(NONCE)
    key = _key(secret)

    def sign(role: str, client: bytes, accepting: bytes) -> bytes:
        return hmac.digest(key, f"{role}|{purpose}|".encode() + client + accepting, "sha256")

    try:
        if server:
            theirs = _read(sock, NONCE, min(deadline, time.monotonic() + SILENCE), deadline)
            sock.sendall(mine)
            if not hmac.compare_digest(_read(sock, MAC, deadline, deadline), sign("client", theirs, mine)):
                raise AuthenticationError(f"a peer on the {purpose} socket does not know the job's secret")
            sock.sendall(sign("server", theirs, mine))
            nonces = theirs, mine
        else:
            sock.sendall(mine)
            theirs = _read(sock, NONCE, deadline, deadline)
            sock.sendall(sign("client", mine, theirs))
            if not hmac.compare_digest(_read(sock, MAC, deadline, deadline), sign("server", mine, theirs)):
                raise AuthenticationError(f"the {purpose} server does not know the job's secret")
            nonces = mine, theirs
        sock.settimeout(None)
    except AuthenticationError:
        raise
    except TimeoutError:
        raise UnfinishedHandshakeError(
            f"the peer on the {purpose} socket did not finish its handshake in time"
        ) from None
    except (OSError, EOFError) as error:
        raise UnfinishedHandshakeError(f"handshake on the {purpose} socket failed: {error}") from error
    keys = sign("client's key", *nonces), sign("server's key", *nonces)
    return Session(sock, *(reversed(keys) if server else keys))


def _read(sock: socket.socket, count: int, begin: float, deadline: float) -> bytes:
    """``count`` bytes, of which the first has come by ``begin``."""
    data = b""
    while len(data) < count:
        left = (deadline if data else begin) - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        piece = sock.recv(count - len(data))
        if not piece:
            raise EOFError("the other end hung up (as it does when it knows another secret)")
        data += piece
    return data
