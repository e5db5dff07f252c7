"""Unauthenticated connections at a listening socket: limited in number and time, so that they
are harmless.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from farandole.base.threads import full
from farandole.errors import AuthenticationError, UnfinishedHandshakeError
from farandole.net.handshake.proof import authenticate
from farandole.net.handshake.session import Session

if TYPE_CHECKING:
    import logging

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Newcomers:
    """Unauthenticated connections at the listening socket of ``place``, at most ``room`` of them.

    Peers of the job complete the handshake in milliseconds, so the oldest connection is closed if
    there are too many. A peer of the job then retries.
    """

    def __init__(self, place: str, logger: logging.Logger, room: int) -> None:
        self.refused = 0
        self._place = place
        self._logger = logger
        self._room = room
        self._pending: dict[socket.socket, None] = {}  # in order of arrival
        self._lock = threading.Lock()
        self._warned: set[bool | None] = set()
        self._full_since = math.inf

    def __len__(self) -> int:
        return len(self._pending)

    def accept_all(
        self, listener: socket.socket, serve: Callable[[socket.socket], None], name: str
    ) -> None:
        """Accept newcomers, each on a thread that runs ``serve``, until ``listener`` is shut down
        or closed.

        On a Unix socket, other users are rejected immediately.
        """
        while True:
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.EBADF):
                    return
                time.sleep(0.05)  # out of descriptors: timeouts of newcomers will free some
                continue
            except MemoryError:
                self._overfull()
                time.sleep(0.05)
                continue
            if sock.family == socket.AF_UNIX and (user := _user(sock)) != os.geteuid():
                sock.close()
                self.refuse(
                    "",
                    AuthenticationError(f"it runs as user {user}, the job as user {os.geteuid()}"),
                )
                continue
            self._take_in(sock)
            try:
                threading.Thread(target=serve, args=(sock,), name=name, daemon=True).start()
                self._full_since = math.inf
            except (RuntimeError, MemoryError):  # no more threads
                self._forget(sock)
                sock.close()
                self._overfull()

    def admit(
        self, sock: socket.socket, secret: str, purpose: str, *, seconds: float = 5.0
    ) -> Session:
        """Return the session with a newcomer that proves itself. Raises AuthenticationError
        otherwise.
        """
        try:
            return authenticate(sock, secret, purpose, server=True, seconds=seconds)
        finally:
            self._forget(sock)

    def refuse(self, peer: object, error: Exception) -> None:
        """Count a rejected newcomer; log the first stranger, and the first newcomer with an
        unfinished handshake.
        """
        unfinished = isinstance(error, UnfinishedHandshakeError)
        with self._lock:
            self.refused += 1
            first = unfinished not in self._warned
            self._warned.add(unfinished)
        if first and unfinished:
            self._logger.info(
                "a client%s connected to %s but did not complete the handshake (%s): it may be a"
                " port scanner, or a rank that was killed",
                _at(peer),
                self._place,
                error,
            )
        elif first:
            self._logger.warning(
                "an unknown client%s connected to %s and was refused (%s); the job continues, and"
                " further unknown clients are refused silently",
                _at(peer),
                self._place,
                error,
            )

    def full(self, seconds: float) -> str:
        """Return why no newcomer could be served for ``seconds``, possibly including the job's
        peers; empty otherwise.
        """
        since = self._full_since  # another thread writes this value
        return (
            f"no thread can be started for new connections: {full()}"
            if time.monotonic() > since + seconds
            else ""
        )

    def _overfull(self) -> None:
        """Log why a newcomer was rejected that may belong to the job."""
        self._full_since = min(self._full_since, time.monotonic())
        if None not in self._warned:
            self._warned.add(None)
            self._logger.warning(
                "no thread can be started for connections to %s, so even ranks of the job are"
                " refused: %s",
                self._place,
                full(),
            )

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            pending, self._pending = list(self._pending), {}
        for sock in pending:
            hang_up(sock)

    def _take_in(self, sock: socket.socket) -> None:
        with self._lock:
            self._pending[sock] = None
            oldest = next(iter(self._pending)) if len(self._pending) > self._room else None
            if oldest is not None:
                del self._pending[oldest]
                hang_up(oldest)

    def _forget(self, sock: socket.socket) -> None:
        with self._lock:
            self._pending.pop(sock, None)


def _at(peer: object) -> str:
    return f" at {peer}" if peer else ""


def _user(sock: socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket, as given by the
    kernel.
    """
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def hang_up(sock: socket.socket) -> None:
    """Wake the thread that waits on the socket; the thread then closes it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
