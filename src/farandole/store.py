"""Rendezvous: a small key-value store that lives in the driver, and the client that every rank has.

Every connection begins with the job's handshake; a stranger is refused, logged once, and costs at most one pending
place for a few seconds. After it, a request is one frame (verb, seconds, key), followed by a frame with the value
when the verb is SET. Values are opaque bytes: nothing is unpickled here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable

from farandole import handshake, liveness
from farandole.errors import AuthenticationError, HorovodInternalError, PeerLostError, RendezvousError
from farandole.log import logger

PURPOSE = "store"
MAX_PENDING = 64  # strangers (and newcomers) in their handshake; the oldest has to go when one more comes
_GET, _TRY, _SET, _CLOCK, _TAKE, _STAY = 1, 2, 3, 4, 5, 6
_HEADER = struct.Struct("<Bd")
_SECONDS = struct.Struct("<d")
_MISSING, _FOUND = b"\0", b"\1"
Value = bytes | bytearray  # what came over the network is kept as it came: it may be large


class StoreServer:
    """Keeps the values. ``hooks`` are called with (key, value) after each ``set`` that came over the network; ``lost``
    with the name of a client that stayed, when its connection ends.

    ``host``: the interface to listen on; ``advertise``: the name under which others reach it, if that is another.
    """

    def __init__(self, secret: str, host: str = "127.0.0.1", advertise: str = "") -> None:
        self.refused = 0
        self.muted = False  # no more warnings
        self.hooks: list[Callable[[str, Value], None]] = []
        self.lost: list[Callable[[str], None]] = []
        self._secret = secret
        self._values: dict[str, Value] = {}
        self._changed = threading.Condition()
        self._sockets: dict[socket.socket, bool] = {}  # in order of arrival; True once the handshake is done
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self._listener = socket.create_server((host, 0), backlog=512)
        name, port = self._listener.getsockname()[:2]
        self.address = f"{advertise or name}:{port}"
        self._acceptor = threading.Thread(target=self._accept, name="farandole-store", daemon=True)
        self._acceptor.start()

    def set(self, key: str, value: Value) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> Value | None:
        with self._changed:
            return self._values.get(key)

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
            self._changed.notify_all()
            open_sockets = list(self._sockets)
            threads = list(self._threads)
        for each in (self._listener, *open_sockets):
            _hang_up(each)
        self._acceptor.join(2.0)
        for thread in threads:
            thread.join(2.0)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.05)  # out of descriptors: strangers' time limits will free some
                continue
            self._make_room()
            thread = threading.Thread(target=self._serve, args=(sock,), name="farandole-store-peer", daemon=True)
            with self._changed:
                self._sockets[sock] = False
                self._threads.add(thread)
            thread.start()

    def _make_room(self) -> None:
        """A rank finishes its handshake in milliseconds, so the oldest of too many pending ones is not a rank."""
        with self._changed:
            pending = [each for each, trusted in self._sockets.items() if not trusted]
        for each in pending[: len(pending) - MAX_PENDING + 1]:
            _hang_up(each)

    def _serve(self, sock: socket.socket) -> None:
        try:
            peer = sock.getpeername()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            liveness.probe(sock)
            handshake.authenticate(sock, self._secret, PURPOSE, server=True)
            with self._changed:
                self._sockets[sock] = True
            while self._answer(sock):
                pass
        except AuthenticationError as error:
            self._refuse(peer, error)
        except (OSError, HorovodInternalError, struct.error, UnicodeDecodeError, MemoryError) as error:
            if not self._closed:
                logger.debug("the store lost a connection: %s", error)
        finally:
            with self._changed:
                self._sockets.pop(sock, None)
                self._threads.discard(threading.current_thread())
            sock.close()

    def _refuse(self, peer: object, error: Exception) -> None:
        with self._changed:
            self.refused += 1
            first = self.refused == 1 and not self._closed and not self.muted
        if first:
            logger.warning(
                "a stranger at %s connected to the job's store and was refused (%s); "
                "the job goes on, and further ones are refused without a word",
                peer, error,
            )  # fmt: skip

    def _answer(self, sock: socket.socket) -> bool:
        request = handshake.recv_frame(sock)
        if request is None or self._closed:
            return False
        verb, seconds = _HEADER.unpack_from(request)
        key = request[_HEADER.size :].decode()
        if verb == _SET:
            value = handshake.recv_frame(sock)
            if value is None:
                return False
            self.receive(key, value)
            handshake.send_frame(sock, _FOUND)
            return True
        if verb == _STAY:
            self._keep(sock, key)
            return False
        if verb == _CLOCK:
            handshake.send_frame(sock, _FOUND)
            handshake.send_frame(sock, _SECONDS.pack(time.monotonic()) + clock_name().encode())
            return True
        found = self._wait(key, 0.0 if verb == _TRY else seconds, take=verb == _TAKE)
        if found is None and self._closed:
            return False  # hang up: "nobody set it" would be a false story
        handshake.send_frame(sock, _MISSING if found is None else _FOUND)
        if found is not None:
            handshake.send_frame(sock, memoryview(found))
        return True

    def _wait(self, key: str, seconds: float, take: bool) -> Value | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or self._closed, seconds)
            return self._values.pop(key, None) if take else self._values.get(key)

    def _keep(self, sock: socket.socket, name: str) -> None:
        """Until the client hangs up, or we do."""
        handshake.send_frame(sock, _FOUND)
        with contextlib.suppress(OSError, HorovodInternalError):
            handshake.recv_frame(sock)
        if not self._closed:
            for hook in self.lost:
                hook(name)


class StoreClient:
    """A rank's side. Thread-safe: each call takes an idle connection or opens one, so that a ``get`` that waits does
    not hold up the ``set`` of another thread."""

    def __init__(self, address: str, secret: str, timeout: float = 30.0) -> None:
        self.address = address
        self.secret = secret
        self.timeout = timeout
        self._lock = threading.Lock()
        self._closed = False
        self._busy: set[socket.socket] = set()
        self._staying: list[socket.socket] = []
        self._idle = [self._connect()]

    def set(self, key: str, value: bytes) -> None:
        self._ask(_SET, key, 0.0, value)

    def get(self, key: str, timeout: float) -> bytes:
        """Wait for ``key``; RendezvousError, naming it, when it has not been set after ``timeout`` seconds."""
        found = self._ask(_GET, key, timeout)
        if found is None:
            raise RendezvousError(
                f"nobody set {key!r} in the job's store within {timeout:g} s; "
                "a rank is missing or late (--start-timeout sets how long to wait)"
            )
        return found

    def take(self, key: str, timeout: float) -> bytes | None:
        """Wait for ``key`` and remove it; None when it has not been set after ``timeout`` seconds."""
        return self._ask(_TAKE, key, timeout)

    def try_get(self, key: str) -> bytes | None:
        return self._ask(_TRY, key, 0.0)

    def stay(self, name: str) -> None:
        """Keep a connection open until ``close`` or the end of this process, so that the server sees that end."""
        sock = self._connect()
        self._staying.append(sock)
        handshake.send_frame(sock, _HEADER.pack(_STAY, 0.0) + name.encode())
        if handshake.recv_frame(sock) is None:
            raise PeerLostError(f"the job's store at {self.address} hung up; the driver has ended")

    def clock(self) -> tuple[float, str]:
        """The time on the monotonic clock of the driver's host, and that clock's name (see ``clock_name``)."""
        answer = self._ask(_CLOCK, "", 0.0)
        assert answer is not None
        return _SECONDS.unpack_from(answer)[0], answer[_SECONDS.size :].decode()

    def close(self) -> None:
        """Hang up. May be called twice; calls that wait, and later ones, raise PeerLostError."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for each in self._busy:
                _hang_up(each)
        for each in (*idle, *self._staying):
            each.close()

    def _ask(self, verb: int, key: str, seconds: float, value: bytes | None = None) -> bytes | None:
        sock = self._take()
        done = False
        try:
            found = self._exchange(sock, verb, key, seconds, value)
            done = True
        except OSError as error:
            raise PeerLostError(f"lost the job's store at {self.address}: {error}") from error
        finally:
            with self._lock:
                self._busy.discard(sock)
                if done and not self._closed:
                    self._idle.append(sock)
                else:
                    sock.close()
        return found

    def _take(self) -> socket.socket:
        with self._lock:
            sock = self._idle.pop() if self._idle and not self._closed else None
        sock = sock or self._connect()
        with self._lock:
            if self._closed:
                sock.close()
                raise PeerLostError("this connection to the job's store was closed")
            self._busy.add(sock)
        return sock

    def _exchange(self, sock: socket.socket, verb: int, key: str, seconds: float, value: bytes | None) -> bytes | None:
        # A silent driver host must not hold a rank for ever: some seconds more than the server was asked to wait.
        sock.settimeout(seconds + max(self.timeout, 10.0))
        handshake.send_frame(sock, _HEADER.pack(verb, seconds) + key.encode())
        if value is not None:
            handshake.send_frame(sock, memoryview(value))
        answer = bytes(handshake.recv_frame(sock) or b"")
        if answer == _MISSING or (answer == _FOUND and verb == _SET):
            return None
        found = handshake.recv_frame(sock) if answer == _FOUND else None
        if found is None:
            raise PeerLostError(f"the job's store at {self.address} hung up; the driver has ended")
        return bytes(found)

    def _connect(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit():
            raise RendezvousError(f"the store's address must be host:port, not {self.address!r} (FARANDOLE_STORE)")
        for attempt in range(3):  # a store under attack may hang up on a newcomer once
            sock = None
            try:
                sock = socket.create_connection((host, int(port)), timeout=self.timeout)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                liveness.probe(sock)
                handshake.authenticate(sock, self.secret, PURPOSE, server=False, seconds=self.timeout)
                self.host = sock.getsockname()[0]  # this host's interface towards the driver
                return sock
            except BaseException as error:
                if sock is not None:
                    sock.close()
                if isinstance(error, AuthenticationError) and attempt < 2:
                    continue
                if isinstance(error, OSError) and not isinstance(error, AuthenticationError):
                    raise RendezvousError(
                        f"no job's store answers at {self.address} ({error}); the driver has ended, "
                        "or a firewall stands between this host and it"
                    ) from error
                raise
        raise AssertionError("unreachable")


def clock_name() -> str:
    """What processes with the same monotonic clock have in common: the running kernel, and the time namespace in it."""
    name = ""
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            name = file.read().strip()
        name += os.readlink("/proc/self/ns/time")
    return name


def _hang_up(sock: socket.socket) -> None:
    """Wake the thread that waits on the socket, which then closes it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
