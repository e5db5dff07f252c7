"""A relay between two ends of a TCP connection: it reads everything, knows no secret, and changes
any bytes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

# From what came (the number of the connection, towards whom it goes, the bytes) to what is passed
# on, each to an end.
Attack = Callable[["Relay", int, str, bytes], None]


class Relay:
    """Listens on ``address`` and forwards to ``behind``. After ``arm``, ``attack`` decides about
    each piece of bytes, and sends with ``send(connection, end, data)``; the ends are "server" and
    "client".
    """

    def __init__(self, behind: tuple[str, int], attack: Attack) -> None:
        self.behind, self.attack = behind, attack
        self.armed: int | None = None  # the connection that is attacked
        self._ends: list[dict[str, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()[:2]
        self._start(self._accept)

    def arm(self, connection: int) -> None:
        self.armed = connection

    def send(self, connection: int, end: str, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._ends[connection][end].sendall(data)

    def cut(self, connection: int) -> None:
        for sock in self._ends[connection].values():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for connection in range(len(self._ends)):
            self.cut(connection)
        for thread in self._threads:
            thread.join(60)
        for ends in self._ends:
            for sock in ends.values():
                sock.close()
        self._listener.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.behind)
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends.append({"client": client, "server": server})
            for source, target in (("client", "server"), ("server", "client")):
                self._start(self._pass_on, len(self._ends) - 1, source, target)

    def _pass_on(self, connection: int, source: str, target: str) -> None:
        with contextlib.suppress(OSError):
            while data := self._ends[connection][source].recv(1 << 16):
                if self.armed == connection:
                    self.attack(self, connection, target, data)
                else:
                    self.send(connection, target, data)
        with contextlib.suppress(OSError):
            self._ends[connection][target].shutdown(socket.SHUT_WR)


def flip(relay: Relay, connection: int, end: str, data: bytes) -> None:
    relay.send(connection, end, data[:-1] + bytes([data[-1] ^ 1]))


def flip_head(relay: Relay, connection: int, end: str, data: bytes) -> None:
    relay.send(connection, end, bytes([data[0] ^ 1]) + data[1:])


def inject(relay: Relay, connection: int, end: str, data: bytes) -> None:
    relay.send(connection, end, b"\0" * 400 + data)


def append(relay: Relay, connection: int, end: str, data: bytes) -> None:
    relay.send(connection, end, data[:100] + b"\0" * 8 + data[100:])


def replay(relay: Relay, connection: int, end: str, data: bytes) -> None:
    relay.send(connection, end, data + data)


def reflect(relay: Relay, connection: int, end: str, data: bytes) -> None:
    relay.send(connection, "client" if end == "server" else "server", data)


def leave_out(relay: Relay, connection: int, end: str, data: bytes) -> None:
    """Drop the first frame, and forward the others."""
    relay.attack = lambda relay, connection, end, data: relay.send(connection, end, data)


def truncate(relay: Relay, connection: int, end: str, data: bytes) -> None:
    relay.send(connection, end, data[: len(data) // 2])
    relay.cut(connection)
