"""Byte streams over the connections of a dedicated link."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farandole.base.contracts import Link
from farandole.core.transports.tcp.board import TcpBoard
from farandole.net.handshake import HEAD, TAG, Session, TamperedError

if TYPE_CHECKING:
    from farandole.base.types import Array

_PIECE = 1 << 20  # bytes of one system call
_CHECK_SECONDS = 0.5  # seconds without an event before the peers' hosts are checked


class TcpStreams:
    """See ``contracts.ByteStreams``. Sealed bytes are authenticated as a frame; the rest is not,
    like other data.
    """

    overhead = HEAD + TAG

    def __init__(self, link: Link, board: TcpBoard, sessions: Sequence[Session | None]) -> None:
        """Create streams over a dedicated ``link`` and its board. ``sessions``: its data
        connections, by rank.
        """
        self.rank = link.rank
        self.size = link.size
        self.names = board.names
        self._link = link
        self._board = board
        self._sessions = sessions
        self._gone: dict[int, Exception] = {}
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._last_sign = time.monotonic()
        self._closed = False

    def write(self, dst: int, data: Array) -> int:
        session = self._sessions[dst]
        assert session is not None
        if dst in self._gone or not len(data):
            return 0
        try:
            return session.stream.send(data[:_PIECE].data)
        except BlockingIOError:
            return 0
        except OSError:
            self._gone[dst] = self._board.loss_of(dst)
            return 0

    def read(self, src: int, into: Array) -> int:
        session = self._sessions[src]
        assert session is not None
        if src in self._gone or not len(into):
            return 0
        try:
            count = session.stream.recv_into(into[:_PIECE].data)
        except BlockingIOError:
            return 0
        except TamperedError:
            self._gone[src] = session.tampered(self.names[src])
            return 0
        except OSError:
            count = 0
        if not count:
            self._gone[src] = self._board.loss_of(src)
        return count

    def seal(self, dst: int, content: bytes) -> bytes:
        session = self._sessions[dst]
        assert session is not None
        head, tail = session.outgoing.seal(content)
        return head + content + tail

    def open(self, src: int, sealed: bytes) -> bytes:
        session = self._sessions[src]
        assert session is not None
        content = sealed[HEAD:-TAG]
        if session.incoming.length(sealed[:HEAD]) != len(content) or not session.incoming.opens(
            content, sealed[-TAG:]
        ):
            raise session.tampered(self.names[src])
        return content

    def wait(
        self, seconds: float, sources: Sequence[int], targets: Sequence[int], *, spin: bool
    ) -> None:
        poll = select.poll()
        interests: dict[int, int] = {}
        for ranks, event in ((sources, select.POLLIN), (targets, select.POLLOUT)):
            for rank in ranks:
                session = self._sessions[rank]
                if session is not None and rank not in self._gone:
                    fd = session.sock.fileno()
                    interests[fd] = interests.get(fd, 0) | event
        for fd in (self._board.connections.fileno(), self._board.stop, self._bell):
            interests[fd] = select.POLLIN
        for fd, event in interests.items():
            poll.register(fd, event)
        ready = [fd for fd, _ in poll.poll(math.ceil(seconds * 1000))]
        now = time.monotonic()
        if ready:
            self._last_sign = now
        elif now - self._last_sign > _CHECK_SECONDS:
            self._board.check_hosts(now - self._last_sign)
        if self._bell in ready:
            os.eventfd_read(self._bell)
        if self._board.pump():
            self._board.wake()
        self._board.check()

    def wake(self) -> None:
        if not self._closed:
            os.eventfd_write(self._bell, 1)

    def gone(self, peer: int) -> Exception | None:
        return self._gone.get(peer)

    def abort(self, why: str) -> None:
        self._link.abort(why)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._link.close()
            os.close(self._bell)
