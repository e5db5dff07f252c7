"""How the ranks of a TCP mesh find each other.

Every rank listens on its own interface and writes the address to the store under ``tcp/<scope>/<rank>``; it dials all
lower ranks and is dialled by all higher ones, twice by each: a connection for data and one for the board. Both ends
prove that they know the job's secret before a byte is believed. When everybody is there, nobody listens any more.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Protocol

from farandole import handshake, liveness
from farandole.errors import AuthenticationError, HorovodInternalError, RendezvousError
from farandole.log import logger

DATA, BOARD = 0, 1
PATIENCE = 5.0  # seconds that one handshake may take
_HELLO = struct.Struct("<IB")  # who dials, and for which of the two connections
_WELCOME = b"\1"


class Store(Protocol):
    """What is needed of ``farandole.store.StoreClient``."""

    def set(self, key: str, value: bytes) -> None: ...
    def get(self, key: str, timeout: float) -> bytes: ...
    def try_get(self, key: str) -> bytes | None: ...


class Meeting:
    """One rendezvous. ``run`` returns the sockets, by rank: (data, board); None in our own place."""

    def __init__(
        self, rank: int, size: int, secret: str, scope: str, store: Store, timeout: float, host: str,
        check: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.rank, self.size, self.secret, self.scope = rank, size, secret, scope
        self.store, self.timeout, self.host, self.check = store, timeout, host, check
        self.deadline = time.monotonic() + timeout
        self.sockets: dict[tuple[int, int], socket.socket] = {}
        self.changed = threading.Condition()
        self.open = True
        self.places = threading.BoundedSemaphore(2 * size + 16)  # pending handshakes
        self.refused = 0
        self.trouble = ""

    def run(self) -> tuple[list[socket.socket | None], list[socket.socket | None]]:
        try:
            listener = socket.create_server((self.host, 0), backlog=max(128, 4 * self.size), family=_family(self.host))
        except OSError as error:
            raise RendezvousError(f"rank {self.rank} cannot listen on {self.host}: {error}") from error
        acceptor = threading.Thread(target=self._accept, args=(listener,), name="farandole-tcp-accept", daemon=True)
        acceptor.start()
        try:
            self.store.set(self._key(self.rank), f"{self.host}|{listener.getsockname()[1]}".encode())
            for peer in range(self.rank):
                for channel in (DATA, BOARD):
                    self._dial(peer, channel)
            self._wait_for_the_higher()
        except BaseException:
            self._end(listener, acceptor)
            for each in self.sockets.values():
                each.close()
            raise
        self._end(listener, acceptor)
        return self._of(DATA), self._of(BOARD)

    def _of(self, channel: int) -> list[socket.socket | None]:
        return [self.sockets.get((peer, channel)) for peer in range(self.size)]

    def _end(self, listener: socket.socket, acceptor: threading.Thread) -> None:
        with self.changed:
            self.open = False
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        acceptor.join(2.0)
        listener.close()

    def _key(self, rank: int) -> str:
        return f"tcp/{self.scope}/{rank}"

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _dial(self, peer: int, channel: int) -> None:
        """Connect to a lower rank. One that does not answer yet may have left an old address: look again."""
        while True:
            host, port = self._address(peer).rsplit("|", 1)
            try:
                sock = socket.create_connection((host, int(port)), timeout=max(0.1, min(PATIENCE, self._left())))
            except OSError as error:
                self.trouble = f"cannot connect to rank {peer} at {host}, port {port}: {error}"
            else:
                try:
                    handshake.authenticate(sock, self.secret, f"{self._key(peer)}", server=False, seconds=PATIENCE)
                    sock.settimeout(PATIENCE)
                    sock.sendall(_HELLO.pack(self.rank, channel))
                    handshake.recv_exactly(sock, len(_WELCOME))
                    self._add(peer, channel, sock)
                    return
                except (OSError, HorovodInternalError) as error:
                    sock.close()
                    self.trouble = f"rank {peer} at {host}, port {port} did not welcome rank {self.rank}: {error}"
            self._pause()

    def _pause(self) -> None:
        if self._left() <= 0:
            raise RendezvousError(self._who_is_missing())
        self.check()
        time.sleep(0.05)

    def _address(self, peer: int) -> str:
        while True:
            try:
                return self.store.get(self._key(peer), max(0.0, min(1.0, self._left()))).decode()
            except RendezvousError:
                self._pause()

    def _wait_for_the_higher(self) -> None:
        wanted = {(peer, channel) for peer in range(self.rank + 1, self.size) for channel in (DATA, BOARD)}
        while True:
            with self.changed:
                if wanted <= self.sockets.keys():
                    return
                self.changed.wait(max(0.01, min(1.0, self._left())))
                if wanted <= self.sockets.keys():
                    return
            self.check()
            if self._left() <= 0:
                raise RendezvousError(self._who_is_missing())

    def _who_is_missing(self) -> str:
        absent: list[int] = []
        silent: list[int] = []
        for peer in range(self.size):
            if peer == self.rank or {(peer, DATA), (peer, BOARD)} <= self.sockets.keys():
                continue
            (absent if self.store.try_get(self._key(peer)) is None else silent).append(peer)
        if absent:
            return f"{_ranks(absent)} did not arrive within {self.timeout:g} s"
        return (
            f"rank {self.rank} and {_ranks(silent)} did not connect within {self.timeout:g} s "
            f"({self.trouble or 'is a firewall between them?'})"
        )

    def _add(self, peer: int, channel: int, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        liveness.probe(sock)
        sock.setblocking(False)
        with self.changed:
            if not self.open:
                sock.close()
                return
            old = self.sockets.get((peer, channel))  # the same rank dialled again: it did not hear our welcome
            self.sockets[peer, channel] = sock
            self.changed.notify_all()
        if old is not None:
            old.close()

    def _accept(self, listener: socket.socket) -> None:
        while self.open:
            try:
                sock, _ = listener.accept()
            except OSError:
                if self.open:
                    time.sleep(0.05)  # out of descriptors: strangers' time limits will free some
                continue
            self.places.acquire()
            threading.Thread(target=self._greet, args=(sock,), name="farandole-tcp-greet", daemon=True).start()

    def _greet(self, sock: socket.socket) -> None:
        try:
            handshake.authenticate(sock, self.secret, self._key(self.rank), server=True, seconds=PATIENCE)
            sock.settimeout(PATIENCE)
            peer, channel = _HELLO.unpack(handshake.recv_exactly(sock, _HELLO.size) or b"")
            if not self.rank < peer < self.size or channel not in (DATA, BOARD):
                raise AuthenticationError(f"it says it is rank {peer} of {self.size}")
            sock.sendall(_WELCOME)
            self._add(peer, channel, sock)
        except (OSError, HorovodInternalError, struct.error) as error:
            sock.close()
            self._log_refusal(error)
        finally:
            self.places.release()

    def _log_refusal(self, error: Exception) -> None:
        with self.changed:
            self.refused += 1
            first = self.refused == 1 and self.open
        if first:
            logger.warning(
                "a stranger connected to rank %d and was refused (%s); the job goes on, and further ones are refused "
                "without a word", self.rank, error,
            )  # fmt: skip


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))
