"""The client of the job's store, which every rank has."""

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
# seconds from which on a link that is out is awaited: a client with less time has other addresses
WORTHWHILE = 5.0
PAUSE = 0.05  # seconds, more after every attempt


class StoreClient:
    """A rank's side. Thread-safe: each call takes an idle connection or opens one, so that a
    ``get`` that waits does not hold up the ``set`` of another thread.
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
        """Wait for ``key``; RendezvousError, naming it, when it has not been set after ``timeout``
        seconds.
        """
        found = self._ask(GET, key, timeout)
        if found is None:
            raise RendezvousError(
                f"nobody set {key!r} in the job's store within {timeout:g} s; "
                "a rank is missing or late (--start-timeout sets how long to wait)"
            )
        return found

    def take(self, key: str, timeout: float) -> bytes | None:
        """Wait for ``key`` and remove it; None when it has not been set after ``timeout``
        seconds.
        """
        return self._ask(TAKE, key, timeout)

    def gather(self, prefix: str, count: int, timeout: float) -> list[bytes | None]:
        """The values of ``prefix/0`` to ``prefix/<count-1>`` as soon as all are set, in one answer;
        None for those that have not been after ``timeout`` seconds.
        """
        found = self._ask(GATHER, f"{count} {prefix}", timeout)
        assert found is not None
        return unpacked(found)

    def try_get(self, key: str) -> bytes | None:
        return self._ask(TRY, key, 0.0)

    def swap(self, key: str, expected: bytes, value: bytes) -> tuple[bool, bytes | None]:
        """Set ``key`` if its value is the ``expected`` one (empty: also if it has none); no other
        client comes between. Was it so, and its value after that (None if it has none)?
        """
        answer = self._ask(SWAP, key, 0.0, LENGTH.pack(len(expected)) + expected + value)
        return (False, None) if answer is None else (bool(answer[0]), answer[1:])

    def announce(self, name: str) -> None:
        """Keep a connection open, as ``name``, until ``close`` or the end of this process: the
        server sees that end.
        """
        session = self._connect()
        self._presences.append(session)
        session.send(HEADER.pack(PRESENCE, 0.0) + name.encode())
        if session.receive(len(FOUND)) is None:
            raise PeerLostError(f"the job's store at {self.address} hung up; the driver has ended")

    def clock(self) -> tuple[float, str]:
        """The time on the monotonic clock of the driver's host, and that clock's name (see
        ``host.clock_name``).
        """
        answer = self._ask(CLOCK, "", 0.0)
        assert answer is not None
        return SECONDS.unpack_from(answer)[0], answer[SECONDS.size :].decode()

    def close(self) -> None:
        """Hang up. May be called twice; calls that wait, and later ones, raise PeerLostError."""
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
        # A silent driver host must not hold a rank for ever: some seconds more than the server was
        # asked to wait.
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
                f"the job's store at {self.address} refused what came from here: {found.decode()}"
            )
        if found is None:
            raise PeerLostError(f"the job's store at {self.address} hung up; the driver has ended")
        return bytes(found)

    def _connect(self) -> Session:
        """A new connection. A store under attack may hang up on a newcomer; so it comes again."""
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
            cause = "the driver has ended, or a firewall stands between this host and it"
            if error.errno == errno.ENETUNREACH and interfaces.is_loopback(host):
                cause = "the loopback interface is down: ip link set lo up"
            raise RendezvousError(
                f"no job's store answers at {self.address} ({error}); {cause}"
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
    """A client of the store, under the first of its addresses at which somebody answers who knows
    the secret. All are tried for the seconds of each round. Raises the last one's error.
    """
    *others, last = [(address, seconds) for seconds in rounds for address in addresses]
    for address, seconds in others:
        with contextlib.suppress(
            RendezvousError, AuthenticationError, HorovodInternalError, OSError
        ):
            return StoreClient(address, secret, seconds)
    return StoreClient(last[0], secret, last[1])
