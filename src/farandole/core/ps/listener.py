"""A process that accepts connections for weights: over a Unix socket and TCP, with one thread for
each connection.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Sequence

from farandole.base.log import logger
from farandole.core.ps.dial import unix_name
from farandole.errors import AuthenticationError, HorovodInternalError, WireError
from farandole.net import interfaces, liveness
from farandole.net.handshake import Newcomers, Session, hang_up

PENDING = 1024  # connections that are not authenticated yet


class Listener:
    """A listener that serves as soon as it is created.

    It calls ``_converse`` with each authenticated connection. ``place``: the listener's name in
    messages; ``names``: the interfaces to listen on, in addition to a Unix socket (empty: all).
    """

    def __init__(self, place: str, secret: str, purpose: str, names: Sequence[str]) -> None:
        self._place = place
        self._secret = secret
        self._purpose = purpose
        self._changed = threading.Condition()
        self._sessions: set[Session] = set()
        self._closed = False
        self._newcomers = Newcomers(place, logger, PENDING)
        token = os.urandom(8).hex()
        near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        near.bind(unix_name(secret, token))
        near.listen(PENDING)
        far = [interfaces.listening(interface, PENDING) for interface in names]
        self._listeners = [near, *far]
        at = [
            [interface, sock.getsockname()[1]] for interface, sock in zip(names, far, strict=True)
        ]
        facts = {"unix": token, "host": socket.gethostname(), "pid": os.getpid()}
        self.address = json.dumps({**facts, "port": at[0][1], "at": at})
        self._acceptors = [
            threading.Thread(
                target=self._newcomers.accept_all,
                args=(listener, self._serve, "farandole-ps-peer"),
                name="farandole-ps",
                daemon=True,
            )
            for listener in self._listeners
        ]
        for acceptor in self._acceptors:
            acceptor.start()

    def _hang_up(self) -> None:
        """Close all connections and accept no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            sessions = list(self._sessions)
        for sock in (*self._listeners, *(session.sock for session in sessions)):
            hang_up(sock)
        self._newcomers.close()

    def _join(self) -> None:
        """Wait until the acceptors have ended. May be called twice."""
        for listener, acceptor in zip(self._listeners, self._acceptors, strict=True):
            acceptor.join(2.0)
            listener.close()

    def _converse(self, session: Session) -> None:
        raise NotImplementedError

    def _serve(self, sock: socket.socket) -> None:
        try:
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                liveness.probe(sock)
            session = self._newcomers.admit(sock, self._secret, self._purpose)
            session.peer = f"a client of {self._place}"
            self._keep(session)
        except AuthenticationError as error:
            if not self._closed:
                self._newcomers.refuse("", error)
        except (WireError, KeyError, TypeError, ValueError) as error:
            logger.warning("%s closed a connection: %r", self._place, error)
        except (OSError, HorovodInternalError, MemoryError) as error:
            logger.debug("%s lost a connection: %s", self._place, error)
        finally:
            sock.close()

    def _keep(self, session: Session) -> None:
        with self._changed:
            if self._closed:
                return
            self._sessions.add(session)
        try:
            self._converse(session)
        finally:
            with self._changed:
                self._sessions.discard(session)
