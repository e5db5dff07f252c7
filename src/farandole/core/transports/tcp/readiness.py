"""The connections of a link that are ready for reading or writing."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable


class Readiness:
    """An epoll for sockets whose watched events change often. ``always``: descriptors that are
    always watched for reading.
    """

    def __init__(self, always: Iterable[int]) -> None:
        self._epoll = select.epoll()
        self._events: dict[socket.socket, int] = {}
        for fd in always:
            self._epoll.register(fd, select.EPOLLIN)

    def events(self, sock: socket.socket) -> int:
        """Return the events for which ``sock`` is watched."""
        return self._events.get(sock, 0)

    def watch(self, sock: socket.socket, events: int) -> None:
        """Watch ``sock`` for ``events`` from now on; 0: none."""
        before = self._events.get(sock, 0)
        self._events[sock] = events
        if events and before:
            self._epoll.modify(sock, events)
        elif events:
            self._epoll.register(sock, events)
        elif before:
            # epoll reports hang-ups even without events
            self._epoll.unregister(sock)

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        """Wait for up to ``seconds``. Return the ready descriptors and their events."""
        return self._epoll.poll(seconds)

    def close(self) -> None:
        self._epoll.close()
