"""The server of the job's store, in the driver, or in rank 0 if there is no driver.

Every connection begins with the job's handshake. A stranger is rejected and logged once, and
occupies at most one pending slot for a few seconds. Values are opaque bytes: nothing is unpickled
here. The size of a frame is limited by its purpose, and its memory grows as it arrives.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from farandole.base import threads
from farandole.base.host import clock_name
from farandole.base.log import logger
from farandole.errors import AuthenticationError, HorovodInternalError, WireError
from farandole.net import interfaces, liveness
from farandole.net.handshake import ANY_SIZE, Newcomers, Session, hang_up
from farandole.net.store.frames import (
    CLOCK,
    FOUND,
    GATHER,
    PRESENCE,
    PURPOSE,
    REFUSED,
    SECONDS,
    SET,
    SWAP,
    TAKE,
    TRY,
    Value,
    packed,
    parsed,
    reply,
    swap_parts,
    swapped_value,
)

# Unauthenticated connections; a further one replaces the oldest.
MAX_PENDING = 256
MAX_REQUEST = 64 << 10  # maximum bytes of a verb with its key
MAX_VALUE = 64 << 20  # maximum bytes of a value, except for
LARGE = "result/"  # the results of functions, which may have any size
MAX_GATHERED = 1 << 17  # maximum values in one gather request
_Keys = set[str]  # because StoreServer.set hides the built-in type


class _Wait:
    """A wait for missing keys. ``packed``: the answer to a gather, once all keys are set."""

    def __init__(self, missing: set[str]) -> None:
        self.missing = missing
        self.ready = threading.Event()
        self.packed = b""
        if not missing:
            self.ready.set()


class StoreServer:
    """Keeps the values.

    - ``hooks``: Called with (key, value) after each ``set`` from the network.
    - ``lost``: Called with a client's announced name when its connection ends.
    - ``host``: The interface to listen on.
    - ``advertise``: The host name for clients, if different.
    """

    def __init__(self, secret: str, host: str = "127.0.0.1", advertise: str = "") -> None:
        self.newcomers = Newcomers("the job's store", logger, MAX_PENDING)
        self.hooks: list[Callable[[str, Value], None]] = []
        self.lost: list[Callable[[str], None]] = []
        self._secret = secret
        self._values: dict[str, Value] = {}
        self._changed = threading.Lock()
        # By key, so that a value wakes only the threads that wait for it.
        self._awaited: dict[str, list[_Wait]] = {}
        self._gathered: dict[str, _Wait] = {}  # by request: all ranks send the same one
        self._sessions: set[Session] = set()
        self._threads: set[threading.Thread] = set()
        self._ending: list[threading.Thread] = []  # threads about to end
        self._closed = False
        self._complained = False
        self._listener = interfaces.listening(host, backlog=512)
        name, port = self._listener.getsockname()[:2]
        self.interface = host
        self.address = interfaces.joined(advertise or name, port)
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
        """Store a value and wake its waiters. The caller holds the lock."""
        self._values[key] = value
        for wait in self._awaited.pop(key, ()):
            wait.missing.discard(key)
            if not wait.missing:
                wait.ready.set()

    def swap(self, key: str, expected: Value, value: Value) -> tuple[bool, Value | None]:
        """Set ``key`` if its value is ``expected`` (empty also matches a missing value).

        Returns whether it was set, and the value afterwards.
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
        """Return the value like ``get``, waiting for it up to ``seconds``."""
        return self._wait(key, seconds, take=False)

    def pop(self, key: str) -> Value | None:
        """Return and remove the value, because results may be large."""
        with self._changed:
            return self._values.pop(key, None)

    def receive(self, key: str, value: Value) -> None:
        """Set the value and call the hooks, as if a client had set it."""
        self.set(key, value)
        for hook in self.hooks:
            hook(key, value)

    def close(self) -> None:
        """Close all connections. May be called twice."""
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
                "the job's store closed a connection, and will close all further ones like it: %s",
                error,
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
        if verb == PRESENCE:
            self._hold_presence(session, key)
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
            return False  # close the connection: reporting a missing key would be wrong
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

    def _expect(self, missing: _Keys) -> _Wait:
        """Register a wait for keys. The caller holds the lock."""
        wait = _Wait(missing)
        for key in missing:
            self._awaited.setdefault(key, []).append(wait)
        return wait

    def _forget(self, wait: _Wait) -> None:
        """Remove a wait."""
        with self._changed:
            for key in wait.missing:
                left = [other for other in self._awaited.get(key, ()) if other is not wait]
                if left:
                    self._awaited[key] = left
                else:
                    self._awaited.pop(key, None)

    def _gather(self, request: str, seconds: float, session: Session) -> bytes | None:
        """Return the values of ``<count> <prefix>``, packed; those missing after ``seconds``
        are marked.
        """
        number, _, prefix = request.partition(" ")
        if not number.isdecimal() or not 0 < int(number) <= MAX_GATHERED:
            raise WireError(
                f"{session.peer} asked to gather {number[:20]!r} values; the number must be from"
                f" 1 to {MAX_GATHERED}"
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

    def _hold_presence(self, session: Session, name: str) -> None:
        """Hold a client's announced connection until either end closes it."""
        # Keepalive is inactive while this reply is in flight, and no more data follows; see
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
