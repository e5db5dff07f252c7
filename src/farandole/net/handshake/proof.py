"""Proof by both ends of a connection that they know the job's secret.

The protocol is challenge-response with the job's secret (keyed BLAKE2s, in both directions): each
side signs both sides' fresh nonces, so a recorded handshake is useless. Messages before
authentication have a fixed size: no data from a stranger is parsed, and no length is trusted. A
stranger has ``seconds`` to finish, and ``SILENCE`` to begin. The keys of the following session are
derived from the secret and both nonces, so a relay between two peers does not have them.

With a secret that begins with ``tls:``, the handshake and everything after it are encrypted by TLS
(``tls``), except on Unix sockets. A process with such a secret cannot send cleartext by mistake.
"""

from __future__ import annotations

import math
import os
import socket
import time
from _blake2 import blake2s
from _operator import _compare_digest as compare_digest
from typing import NamedTuple

from farandole.errors import AuthenticationError, UnfinishedHandshakeError
from farandole.net.handshake.session import RECORDS, Session, Stream

NONCE = 32
MAC = 32
SILENCE = 2.0  # seconds for the first byte to arrive; peers send it right after connecting


ENCRYPTED = "tls:"  # prefix of a secret that requires TLS


def new_secret(tls: bool = False) -> str:
    """Return a new secret for one job, in hex; with ``tls``, connections between hosts are
    encrypted.
    """
    return (ENCRYPTED if tls else "") + os.urandom(32).hex()


def encrypted(secret: str) -> bool:
    """Return whether a job with this secret encrypts its connections."""
    return secret.startswith(ENCRYPTED)


def derive(secret: str, purpose: str) -> str:
    """Return a name (32 hex digits) that cannot be guessed without the secret."""
    return _mac(_key(secret), purpose.encode()).hex()[:32]


def _mac(key: bytes, message: bytes) -> bytes:
    return blake2s(
        message, key=key if len(key) <= blake2s.MAX_KEY_SIZE else blake2s(key).digest()
    ).digest()


def _key(secret: str) -> bytes:
    try:
        return bytes.fromhex(secret.removeprefix(ENCRYPTED))
    except ValueError:
        raise AuthenticationError(
            "the job's secret (FARANDOLE_SECRET) must be hexadecimal digits, as returned by"
            " farandole.net.handshake.new_secret()"
        ) from None


def authenticate(
    sock: socket.socket, secret: str, purpose: str, *, server: bool, seconds: float = 5.0
) -> Session:
    """Authenticate both ends to each other and return the session. Raises AuthenticationError on
    failure.

    ``purpose`` distinguishes the sockets of one job.
    """
    deadline = time.monotonic() + seconds
    begin = min(deadline, time.monotonic() + SILENCE)
    try:
        stream: Stream = sock
        if encrypted(secret) and sock.family != socket.AF_UNIX:
            from farandole.net.handshake import tls  # imported here because it imports ssl

            stream = tls.encrypt(
                sock, _key(secret), purpose, server=server, begin=begin, deadline=deadline
            )
            begin = deadline
        keys = _challenge(_Messages(sock, stream, deadline), _key(secret), purpose, server, begin)
        sock.settimeout(None)
    except AuthenticationError:
        raise
    except TimeoutError:
        raise UnfinishedHandshakeError(
            f"the peer on the {purpose} socket did not finish its handshake in time"
        ) from None
    except (OSError, EOFError) as error:
        raise UnfinishedHandshakeError(
            f"handshake on the {purpose} socket failed: {error}"
        ) from error
    return Session(sock, *keys, stream=stream)


class _Messages(NamedTuple):
    """The messages of a handshake, which must be complete by ``deadline``."""

    sock: socket.socket
    stream: Stream
    deadline: float

    def send(self, content: bytes) -> None:
        self.stream.sendall(content)

    def receive(self, count: int, begin: float = math.inf) -> bytes:
        """Return ``count`` bytes; the first must arrive by ``begin``."""
        data = b""
        while len(data) < count:
            left = (self.deadline if data else min(begin, self.deadline)) - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            piece = self.stream.recv(count - len(data))
            if not piece:
                raise EOFError(
                    "the peer closed the connection (as it does if it has a different secret)"
                )
            data += piece
        return data


def _challenge(
    messages: _Messages, key: bytes, purpose: str, server: bool, begin: float
) -> tuple[bytes, bytes]:
    """Return the keys of the outgoing and incoming direction; the client's first byte must
    arrive by ``begin``.
    """
    mine = os.urandom(NONCE)
    while mine[0] in RECORDS:
        mine = os.urandom(NONCE)

    def sign(role: str, client: bytes, accepting: bytes) -> bytes:
        return _mac(key, f"{role}|{purpose}|".encode() + client + accepting)

    if server:
        theirs = messages.receive(NONCE, begin)
        messages.send(mine)
        _check_clear(theirs, purpose)
        if not compare_digest(messages.receive(MAC), sign("client", theirs, mine)):
            raise AuthenticationError(
                f"a peer on the {purpose} socket does not know the job's secret"
            )
        messages.send(sign("server", theirs, mine))
        return sign("server's key", theirs, mine), sign("client's key", theirs, mine)
    messages.send(mine)
    theirs = messages.receive(NONCE)
    _check_clear(theirs, purpose)
    messages.send(sign("client", mine, theirs))
    if not compare_digest(messages.receive(MAC), sign("server", mine, theirs)):
        raise AuthenticationError(f"the {purpose} server does not know the job's secret")
    return sign("client's key", mine, theirs), sign("server's key", mine, theirs)


def _check_clear(nonce: bytes, purpose: str) -> None:
    """Raise AuthenticationError if the nonce is a TLS message."""
    if nonce[0] in RECORDS:
        raise AuthenticationError(
            f"the peer on the {purpose} socket uses TLS, but this process does not: start both"
            " with --tls (FARANDOLE_TLS=1), or neither"
        )
