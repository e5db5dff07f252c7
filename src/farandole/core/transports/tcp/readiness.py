"""Which connections of a link can be read or written."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable


class Readiness:
    """An epoll whose sockets change their events often. ``always``: descriptors that are always
    watched for reading.
    """

    def __init__(self, always: Iterable[int]) -> None:
        self._epoll = select.epoll()
        self._events: dict[socket.socket, int] = {}
        for fd in always:
            self._epoll.register(fd, select.EPOLLIN)

    def events(self, sock: socket.socket) -> int:
        """The events for which ``sock`` is watched."""
        return self._events.get(sock, 0)

    def watch(self, sock: socket.socket, events: int) -> None:
        """Watch ``sock`` for ``events`` from now on; for none with 0."""
        before = self._events.get(sock, 0)
        self._events[sock] = events
        if events and before:
            self._epoll.modify(sock, events)
        elif events:
            self._epoll.register(sock, events)
        elif before:
            # with no events asked for, its end would still be reported
            self._epoll.unregister(sock)

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        """Descriptors and their events, within ``seconds``."""
        return self._epoll.poll(seconds)

    def close(self) -> None:
        self._epoll.close()
