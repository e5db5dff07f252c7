"""The client of the job's store, used by every rank."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Sequence

from farandole.errors import (
    AuthenticationError,
    HorovodInternalError,
    PeerLostError,
    RendezvousError,
    UnfinishedHandshakeError,
    WireError,
)
from farandole.net import interfaces, liveness
from farandole.net.handshake import ANY_SIZE, Session, authenticate, hang_up
from farandole.net.store.frames import (
    CLOCK,
    FOUND,
    GATHER,
    GET,
    HEADER,
    LENGTH,
    MISSING,
    PRESENCE,
    PURPOSE,
    REFUSED,
    SECONDS,
    SET,
    SWAP,
    TAKE,
    TRY,
    unpacked,
)

ATTEMPTS = 5
# Timeout in seconds from which a client waits for a link that is down; one with less time has other
# addresses to try.
WORTHWHILE = 5.0
PAUSE = 0.05  # seconds, increasing with every attempt


class StoreClient:
    """A rank's connection to the store. Thread-safe.

    Each call takes an idle connection or opens one, so that a waiting ``get`` does not block
    another thread's ``set``.
    """

    def __init__(self, address: str, secret: str, timeout: float = 30.0) -> None:
        self.address = address
        self.secret = secret
        self.timeout = timeout
        self._lock = threading.Lock()
        self._closed = False
        self._busy: set[Session] = set()
        self._presences: list[Session] = []
        self._idle = [self._connect()]

    def set(self, key: str, value: bytes) -> None:
        self._ask(SET, key, 0.0, value)

    def get(self, key: str, timeout: float) -> bytes:
        """Wait for ``key`` and return its value. Raises RendezvousError, naming the key, after
        ``timeout`` seconds.
        """
        found = self._ask(GET, key, timeout)
        if found is None:
            raise RendezvousError(
                f"{key!r} was not set in the job's store within {timeout:g} s; a rank is missing"
                " or late (raise --start-timeout if starting takes longer)"
            )
        return found

    def take(self, key: str, timeout: float) -> bytes | None:
        """Wait for ``key``, remove it and return its value; None after ``timeout`` seconds."""
        return self._ask(TAKE, key, timeout)

    def gather(self, prefix: str, count: int, timeout: float) -> list[bytes | None]:
        """Return the values of ``prefix/0`` to ``prefix/<count-1>`` once all are set, in one
        answer.

        After ``timeout`` seconds, missing values are None.
        """
        found = self._ask(GATHER, f"{count} {prefix}", timeout)
        assert found is not None
        return unpacked(found)

    def try_get(self, key: str) -> bytes | None:
        return self._ask(TRY, key, 0.0)

    def swap(self, key: str, expected: bytes, value: bytes) -> tuple[bool, bytes | None]:
        """Set ``key`` atomically if its value is ``expected`` (empty also matches a missing
        value).

        Returns whether it was set, and the value afterwards (None if missing).
        """
        answer = self._ask(SWAP, key, 0.0, LENGTH.pack(len(expected)) + expected + value)
        return (False, None) if answer is None else (bool(answer[0]), answer[1:])

    def announce(self, name: str) -> None:
        """Keep a connection open, as ``name``, until ``close`` or the end of this process,
        which the server detects.
        """
        session = self._connect()
        self._presences.append(session)
        session.send(HEADER.pack(PRESENCE, 0.0) + name.encode())
        if session.receive(len(FOUND)) is None:
            raise PeerLostError(
                f"the job's store at {self.address} closed the connection; the driver has ended"
            )

    def clock(self) -> tuple[float, str]:
        """Return the monotonic time of the driver's host, and the name of that clock (see
        ``host.clock_name``).
        """
        answer = self._ask(CLOCK, "", 0.0)
        assert answer is not None
        return SECONDS.unpack_from(answer)[0], answer[SECONDS.size :].decode()

    def close(self) -> None:
        """Close all connections. May be called twice. Waiting and later calls raise
        PeerLostError.
        """
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for session in self._busy:
                hang_up(session.sock)
        for session in (*idle, *self._presences):
            session.close()

    def _ask(self, verb: int, key: str, seconds: float, value: bytes | None = None) -> bytes | None:
        session = self._take()
        done = False
        try:
            found = self._exchange(session, verb, key, seconds, value)
            done = True
        except OSError as error:
            raise PeerLostError(f"lost the job's store at {self.address}: {error}") from error
        finally:
            with self._lock:
                self._busy.discard(session)
                if done and not self._closed:
                    self._idle.append(session)
                else:
                    session.close()
        return found

    def _take(self) -> Session:
        with self._lock:
            session = self._idle.pop() if self._idle and not self._closed else None
        session = session or self._connect()
        with self._lock:
            if self._closed:
                session.close()
                raise PeerLostError("this connection to the job's store was closed")
            self._busy.add(session)
        return session

    def _exchange(
        self, session: Session, verb: int, key: str, seconds: float, value: bytes | None
    ) -> bytes | None:
        # A silent driver host must not block a rank forever, so the timeout is a few seconds longer
        # than the server's wait.
        session.sock.settimeout(seconds + max(self.timeout, 10.0))
        session.send(HEADER.pack(verb, seconds) + key.encode())
        if value is not None:
            session.send(value)
        liveness.await_answer(session.sock, seconds + max(self.timeout, 10.0))
        answer = bytes(session.receive(len(FOUND)) or b"")
        if answer == MISSING or (answer == FOUND and verb == SET):
            return None
        found = session.receive(ANY_SIZE) if answer in (FOUND, REFUSED) else None
        if found is not None and answer == REFUSED:
            raise WireError(
                f"the job's store at {self.address} refused a request of this rank:"
                f" {found.decode()}"
            )
        if found is None:
            raise PeerLostError(
                f"the job's store at {self.address} closed the connection; the driver has ended"
            )
        return bytes(found)

    def _connect(self) -> Session:
        """Return a new connection. Retries, because a store under attack may drop newcomers."""
        host, port = interfaces.split(self.address)
        if not host or not port.isdigit():
            raise RendezvousError(
                f"the store's address must be host:port, not {self.address!r} (FARANDOLE_STORE)"
            )
        for attempt in range(ATTEMPTS):
            time.sleep(PAUSE * attempt)
            with contextlib.suppress(UnfinishedHandshakeError):
                return self._dial(host, int(port))
        return self._dial(host, int(port))

    def _dial(self, host: str, port: int) -> Session:
        connect = liveness.reached if self.timeout >= WORTHWHILE else liveness.connected
        try:
            sock = connect(host, port, self.timeout)
        except OSError as error:
            cause = "the driver has ended, or a firewall blocks its port"
            if error.errno == errno.ENETUNREACH and interfaces.is_loopback(host):
                cause = "the loopback interface is down: ip link set lo up"
            raise RendezvousError(
                f"the job's store at {self.address} does not answer ({error}); {cause}"
            ) from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            liveness.probe(sock)
            session = authenticate(sock, self.secret, PURPOSE, server=False, seconds=self.timeout)
            self.host = sock.getsockname()[0]  # this host's interface towards the driver
        except BaseException:
            sock.close()
            raise
        session.peer = f"the job's store at {self.address}"
        return session


def reach(addresses: Sequence[str], secret: str, *rounds: float) -> StoreClient:
    """Return a client of the store, at the first address that responds and knows the secret.

    All addresses are tried for the seconds of each round. Raises the last address's error.
    """
    *others, last = [(address, seconds) for seconds in rounds for address in addresses]
    for address, seconds in others:
        with contextlib.suppress(
            RendezvousError, AuthenticationError, HorovodInternalError, OSError
        ):
            return StoreClient(address, secret, seconds)
    return StoreClient(last[0], secret, last[1])
