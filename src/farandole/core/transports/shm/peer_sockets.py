"""The sockets between the ranks of a host, which pass memory and reveal departures."""

from __future__ import annotations

import select
import socket
from collections.abc import Mapping


class PeerSockets:
    """The sockets of one rank to all others, by rank."""

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        self.by_rank = dict(sockets)
        self._rank_of_fd = {sock.fileno(): peer for peer, sock in self.by_rank.items()}
        self._poll = select.poll()
        for fd in self._rank_of_fd:
            self._poll.register(fd, select.POLLIN | select.POLLHUP)

    def ready(self) -> list[int]:
        """Return the peers whose sockets are closed or readable. Does not wait."""
        return [self._rank_of_fd[fd] for fd, _ in self._poll.poll(0)]

    def hung_up(self, peer: int) -> bool:
        """Return whether the other end of the socket is closed."""
        try:
            return self.by_rank[peer].recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        for sock in self.by_rank.values():
            sock.close()
