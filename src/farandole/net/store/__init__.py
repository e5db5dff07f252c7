"""Rendezvous: a small key-value store that lives in the driver, and the client that every rank has.

Every connection begins with the job's handshake; a stranger is refused, logged once, and costs at
most one pending place for a few seconds. After it, a request is one frame (verb, seconds, key),
followed by a frame with the value when the verb is SET or SWAP. Values are opaque bytes: nothing is
unpickled here. What a frame may hold is limited by what it is for, and its memory grows as it
arrives.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Sequence

from farandole.base import threads
from farandole.base.host import namespace
from farandole.base.log import logger
from farandole.errors import (
    AuthenticationError,
    HorovodInternalError,
    PeerLostError,
    RendezvousError,
    UnfinishedHandshakeError,
    WireError,
)
from farandole.net import interfaces, liveness
from farandole.net.handshake import ANY_SIZE, Newcomers, Session, authenticate, hang_up, new_secret
from farandole.net.store.frames import (
    CLOCK,
    FOUND,
    GATHER,
    GET,
    HEADER,
    LENGTH,
    MISSING,
    REFUSED,
    SECONDS,
    SET,
    STAY,
    SWAP,
    TAKE,
    TRY,
    packed,
    parsed,
    reply,
    swap_parts,
    swapped_value,
    unpacked,
)
from farandole.net.store.frames import Value as Value

PURPOSE = "store"
# strangers (and newcomers) in their handshake; the oldest has to go when one more comes
MAX_PENDING = 256
MAX_REQUEST = 64 << 10  # bytes of a verb with its key
MAX_VALUE = 64 << 20  # bytes of a value, but for
LARGE = "result/"  # the results of functions may be of any size
ATTEMPTS = 5
# seconds from which on a link that is out is awaited: who has less has other addresses
WORTHWHILE = 5.0
PAUSE = 0.05  # seconds, more after every attempt
MOST = 1 << 17  # values that one request may gather
Keys = set[str]


class _Wait:
    """For keys that are not there yet. ``packed``: the answer to those who gather them, once all
    are there.
    """

    def __init__(self, missing: set[str]) -> None:
        self.missing = missing
        self.ready = threading.Event()
        self.packed = b""
        if not missing:
            self.ready.set()


class StoreServer:
    """Keeps the values. ``hooks`` are called with (key, value) after each ``set`` that came over
    the network; ``lost`` with the name of a client that stayed, when its connection ends.

    ``host``: the interface to listen on; ``advertise``: the name under which others reach it, if
    that is another.
    """

    def __init__(self, secret: str, host: str = "127.0.0.1", advertise: str = "") -> None:
        self.newcomers = Newcomers("the job's store", logger, MAX_PENDING)
        self.hooks: list[Callable[[str, Value], None]] = []
        self.lost: list[Callable[[str], None]] = []
        self._secret = secret
        self._values: dict[str, Value] = {}
        self._changed = threading.Lock()
        # by key: a value wakes those who wait for it, and nobody else
        self._awaited: dict[str, list[_Wait]] = {}
        self._gathered: dict[str, _Wait] = {}  # by request: all ranks ask for the same
        self._sessions: set[Session] = set()
        self._threads: set[threading.Thread] = set()
        self._ending: list[threading.Thread] = []  # those that are about to end
        self._closed = self._complained = False
        self._listener = interfaces.listening(host, backlog=512)
        name, port = self._listener.getsockname()[:2]
        self.interface, self.address = host, interfaces.joined(advertise or name, port)
        self._acceptor = threading.Thread(
            target=self.newcomers.accept_all,
            args=(self._listener, self._serve, "farandole-store-peer"),
            name="farandole-store",
            daemon=True,
        )
        threads.start(self._acceptor)

    def set(self, key: str, value: Value) -> None:
        with self._changed:
            self._put(key, value)

    def _put(self, key: str, value: Value) -> None:
        """(Holding the lock.)"""
        self._values[key] = value
        for wait in self._awaited.pop(key, ()):
            wait.missing.discard(key)
            if not wait.missing:
                wait.ready.set()

    def swap(self, key: str, expected: Value, value: Value) -> tuple[bool, Value | None]:
        """``set``, if the value is the ``expected`` one (empty: also if there is none). Was it, and
        what is there after it?
        """
        with self._changed:
            now = self._values.get(key)
            swapped = (now is None and not expected) or now == expected
            if swapped:
                self._put(key, value)
            return swapped, self._values.get(key)

    def get(self, key: str) -> Value | None:
        with self._changed:
            return self._values.get(key)

    def wait(self, key: str, seconds: float) -> Value | None:
        """Like ``get``, for a value that may be set within ``seconds``."""
        return self._wait(key, seconds, take=False)

    def pop(self, key: str) -> Value | None:
        """Like ``get``, and forgets the value: results may be large."""
        with self._changed:
            return self._values.pop(key, None)

    def receive(self, key: str, value: Value) -> None:
        """Like ``set``, and calls the hooks: as if a client had set it."""
        self.set(key, value)
        for hook in self.hooks:
            hook(key, value)

    def close(self) -> None:
        """Hang up on everybody. May be called twice."""
        with self._changed:
            self._closed = True
            for wait in [wait for waits in self._awaited.values() for wait in waits]:
                wait.ready.set()
            sessions = list(self._sessions)
        for sock in (self._listener, *(session.sock for session in sessions)):
            hang_up(sock)
        self._acceptor.join(2.0)
        self.newcomers.close()
        with self._changed:
            threads = [*self._threads, *self._ending]
        for thread in threads:
            thread.join(2.0)
        self._listener.close()

    def _serve(self, sock: socket.socket) -> None:
        peer = interfaces.caller(sock)
        with self._changed:
            self._threads.add(threading.current_thread())
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            liveness.probe(sock)
            session = self.newcomers.admit(sock, self._secret, PURPOSE)
            session.peer = f"a client of the store at {peer}"
            self._converse(session)
        except AuthenticationError as error:
            if not self._closed:
                self.newcomers.refuse(peer, error)
        except WireError as error:
            self._complain(error)
            with contextlib.suppress(OSError, HorovodInternalError):
                session.send(REFUSED)
                session.send(str(error).encode())
        except (OSError, HorovodInternalError, MemoryError) as error:
            if not self._closed:
                logger.debug("the store lost a connection: %s", error)
        finally:
            sock.close()
            with self._changed:
                self._threads.discard(me := threading.current_thread())
                self._ending = [each for each in self._ending if each.is_alive()] + [me]

    def _converse(self, session: Session) -> None:
        with self._changed:
            if self._closed:
                return
            self._sessions.add(session)
        try:
            while self._answer(session):
                pass
        finally:
            with self._changed:
                self._sessions.discard(session)

    def _complain(self, error: WireError) -> None:
        with self._changed:
            first = not (self._complained or self._closed)
            self._complained = True
        if first:
            logger.warning(
                "the job's store hung up on a connection, as on all further ones like it: %s", error
            )

    def _answer(self, session: Session) -> bool:
        request = session.receive(MAX_REQUEST)
        if request is None or self._closed:
            return False
        verb, seconds, key = parsed(request, session)
        if verb == SET:
            value = session.receive(ANY_SIZE if key.startswith(LARGE) else MAX_VALUE)
            if value is None:
                return False
            self.receive(key, value)
            session.send(FOUND)
            return True
        if verb == SWAP:
            both = session.receive(MAX_VALUE)
            return both is not None and reply(
                session, swapped_value(*self.swap(key, *swap_parts(both, session)))
            )
        if verb == STAY:
            self._keep(session, key)
            return False
        if verb == CLOCK:
            session.send(FOUND)
            session.send(SECONDS.pack(time.monotonic()) + clock_name().encode())
            return True
        found: Value | None
        if verb == GATHER:
            found = self._gather(key, seconds, session)
        else:
            found = self._wait(key, 0.0 if verb == TRY else seconds, take=verb == TAKE)
        if found is None and self._closed:
            return False  # hang up: "nobody set it" would be a false story
        return reply(session, found)

    def _wait(self, key: str, seconds: float, take: bool) -> Value | None:
        deadline = time.monotonic() + seconds
        while True:
            with self._changed:
                if key in self._values:
                    return self._values.pop(key) if take else self._values[key]
                left = deadline - time.monotonic()
                if self._closed or left <= 0:
                    return None
                wait = self._expect({key})
            wait.ready.wait(left)
            self._forget(wait)

    def _expect(self, missing: Keys) -> _Wait:
        """(Holding the lock.)"""
        wait = _Wait(missing)
        for key in missing:
            self._awaited.setdefault(key, []).append(wait)
        return wait

    def _forget(self, wait: _Wait) -> None:
        """Nobody waits any more."""
        with self._changed:
            for key in wait.missing:
                left = [other for other in self._awaited.get(key, ()) if other is not wait]
                if left:
                    self._awaited[key] = left
                else:
                    self._awaited.pop(key, None)

    def _gather(self, request: str, seconds: float, session: Session) -> bytes | None:
        """The values of ``<count> <prefix>``, packed; what is missing after ``seconds`` is
        marked.
        """
        number, _, prefix = request.partition(" ")
        if not number.isdecimal() or not 0 < int(number) <= MOST:
            raise WireError(
                f"{session.peer} wants to gather {number[:20]!r} values; from 1 to {MOST} can be"
            )
        keys = [f"{prefix}/{index}" for index in range(int(number))]
        with self._changed:
            wait = self._gathered.get(request)
            if wait is None:
                wait = self._expect({key for key in keys if key not in self._values})
                self._gathered[request] = wait
        complete = wait.ready.wait(seconds)
        with self._changed:
            if self._closed:
                return None
            if not complete:
                return packed([self._values.get(key) for key in keys])
            wait.packed = wait.packed or packed([self._values.get(key) for key in keys])
            return wait.packed

    def _keep(self, session: Session, name: str) -> None:
        """Until the client hangs up, or we do."""
        # Keepalive does not ask while this is under way, and nothing more is ever sent: see
        # liveness.
        session.sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * liveness.LOST_SECONDS)
        )
        session.send(FOUND)
        with contextlib.suppress(OSError, HorovodInternalError):
            session.receive(0)
        if not self._closed:
            for hook in self.lost:
                hook(name)


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
        self._staying: list[Session] = []
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
        told = self._ask(SWAP, key, 0.0, LENGTH.pack(len(expected)) + expected + value)
        return (False, None) if told is None else (bool(told[0]), told[1:])

    def stay(self, name: str) -> None:
        """Keep a connection open until ``close`` or the end of this process, so that the server
        sees that end.
        """
        session = self._connect()
        self._staying.append(session)
        session.send(HEADER.pack(STAY, 0.0) + name.encode())
        if session.receive(len(FOUND)) is None:
            raise PeerLostError(f"the job's store at {self.address} hung up; the driver has ended")

    def clock(self) -> tuple[float, str]:
        """The time on the monotonic clock of the driver's host, and that clock's name (see
        ``clock_name``).
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
        for session in (*idle, *self._staying):
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


class Door:
    """The way in for those to whom the secret of ``store`` cannot go unseen. They are told an
    ``invitation`` instead, which asks for TLS and opens nothing but this; here each of ``seats`` is
    handed the secret once. When all are in, the door is closed, and the invitation worthless, also
    to who has captured it and all packets.
    """

    def __init__(
        self,
        store: StoreServer,
        secret: str,
        seats: int,
        host: str = "127.0.0.1",
        advertise: str = "",
    ) -> None:
        self.invitation = new_secret(tls=True)
        self._server = StoreServer(self.invitation, host, advertise)
        self.address = self._server.address
        for seat in range(seats):
            self._server.set(
                f"seat/{seat}", f"{store.address.rpartition(':')[2]} {secret}".encode()
            )

    def close(self) -> None:
        self._server.close()


def enter(door: StoreClient, seat: int) -> StoreClient:
    """A client of the store behind the door. Raises AuthenticationError if somebody else has sat
    down there.
    """
    handed = door.take(f"seat/{seat}", 0.0)
    door.close()
    if handed is None:
        raise AuthenticationError(
            f"somebody else has used this job's invitation in the place of number {seat}, and may"
            " know its secret: who can read what the cluster tells its processes? Start the job"
            " again, by ssh (-H) if you do not know"
        )
    port, _, secret = handed.decode().partition(" ")
    return StoreClient(
        interfaces.joined(interfaces.split(door.address)[0], port), secret, door.timeout
    )


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


def clock_name() -> str:
    """The common trait of processes with the same monotonic clock: the running kernel, and the time
    namespace in it.
    """
    return namespace("time")
