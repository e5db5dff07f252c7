"""Both ends of a connection prove that they know the job's secret.

Challenge-response with the job's secret (keyed BLAKE2s, both directions): each side proves that it
knows the secret by signing both sides' fresh nonces, so a recorded handshake is worthless. All
messages before trust have a fixed size: nothing that a stranger sends is parsed, no length of his
is believed, and he has ``seconds`` to finish; of these, ``SILENCE`` to begin. The keys of the
session that follows come from the secret and both nonces: a relay between two that know the secret
does not have them.

A secret that begins with ``tls:`` has all of that, and all that follows, go over TLS (``tls``), but
on Unix sockets. Whoever has such a secret cannot speak in clear by mistake.
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
SILENCE = 2.0  # seconds in which the first byte must come: who has connected sends it at once


ENCRYPTED = "tls:"  # the beginning of a secret that asks for TLS


def new_secret(tls: bool = False) -> str:
    """A fresh secret for one job, in hex. ``tls``: connections between its hosts are encrypted."""
    return (ENCRYPTED if tls else "") + os.urandom(32).hex()


def encrypted(secret: str) -> bool:
    """Are the connections of a job with this secret encrypted?"""
    return secret.startswith(ENCRYPTED)


def derive(secret: str, purpose: str) -> str:
    """A name (32 hex digits) that only those who know the secret can guess."""
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
            "the job's secret (FARANDOLE_SECRET) must be hexadecimal digits, as"
            " farandole.net.handshake.new_secret() gives"
        ) from None


def authenticate(
    sock: socket.socket, secret: str, purpose: str, *, server: bool, seconds: float = 5.0
) -> Session:
    """Prove both ends to each other, or raise AuthenticationError. ``purpose`` keeps sockets of one
    job apart.
    """
    deadline = time.monotonic() + seconds
    begin = min(deadline, time.monotonic() + SILENCE)
    try:
        stream: Stream = sock
        if encrypted(secret) and sock.family != socket.AF_UNIX:
            from farandole.net.handshake import tls  # here, for it imports ssl

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
    """Those of a handshake, which has to be done by ``deadline``."""

    sock: socket.socket
    stream: Stream
    deadline: float

    def send(self, content: bytes) -> None:
        self.stream.sendall(content)

    def receive(self, count: int, begin: float = math.inf) -> bytes:
        """``count`` bytes, of which the first has come by ``begin``."""
        data = b""
        while len(data) < count:
            left = (self.deadline if data else min(begin, self.deadline)) - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            piece = self.stream.recv(count - len(data))
            if not piece:
                raise EOFError("the other end hung up (as it does when it knows another secret)")
            data += piece
        return data


def _challenge(
    messages: _Messages, key: bytes, purpose: str, server: bool, begin: float
) -> tuple[bytes, bytes]:
    """The keys of both directions, ours first; the client's first byte must come by ``begin``."""
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
    """Raise AuthenticationError for one that is a message of TLS."""
    if nonce[0] in RECORDS:
        raise AuthenticationError(
            f"the other end of the {purpose} socket speaks TLS, this one does not: only one of them"
            " was started with --tls (FARANDOLE_TLS=1)"
        )
