"""Transfers over the data connections: full duplex, without deadlock if all ranks send first.

Each message is a frame whose head and tail authenticate its length and its place in the sequence:
forged or missing bytes end the wire. Without TLS, the content itself is not authenticated, because
this would halve the speed.

While a send waits, arriving bytes from any rank are read: into their target if it is known, else
into a buffer (up to a limit per peer) for a later receive. All ranks may therefore send first and
receive later.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from _operator import _compare_digest as compare_digest  # see handshake
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from farandole.base.contracts import Report
from farandole.core.transports.tcp.board import TcpBoard
from farandole.core.transports.tcp.readiness import Readiness
from farandole.core.transports.tcp.rendezvous import TcpRendezvous
from farandole.core.transports.tcp.streams import TcpStreams
from farandole.core.transports.tcp.stripes import Stripes, front
from farandole.errors import WireError
from farandole.net.handshake import HEAD, TAG, Session, TamperedError
from farandole.net.store.protocol import KeyValueStore

if TYPE_CHECKING:
    from farandole.base.types import Array

# bytes per system call: sending and receiving alternate, so the data in flight stays in cache
PIECE = 1 << 20
_REPORT_SECONDS = 0.5
_SPIN = 200e-6  # seconds for which a receiver polls for a short message before it sleeps
# messages up to this size in bytes are copied into one buffer with their head and tail
JOINED = 16 << 10
# bytes that may be sent to a rank before it receives them, for each connection
AHEAD = 1 << 20
# bytes of one peer that are read before they are requested, for each connection
ASIDE = 4 << 20


def connect(
    rank: int,
    size: int,
    secret: str,
    scope: str,
    store: KeyValueStore,
    timeout: float,
    host: str = "127.0.0.1",
    streams: int = 1,
    names: Sequence[int] = (),
    check: Callable[[], None] = lambda: None,
) -> TcpLink:
    """Connect to all other ranks, found through ``store``.

    ``scope`` distinguishes the wires of one job: use a new one for every wire.

    - ``host``: The interface to listen on.
    - ``streams``: Data connections to each rank.
    - ``names``: The numbers of the ranks in messages; default: 0, 1, 2, ...
    - ``check``: Called while ranks are missing, see ``contracts.End``.

    Raises RendezvousError with the missing ranks after ``timeout`` seconds.
    """
    return _meet(
        TcpRendezvous(rank, size, secret, scope, store, timeout, host, check, streams, names),
        None,
    )


def _meet(rendezvous: TcpRendezvous, parent: TcpBoard | None) -> TcpLink:
    data, boards = rendezvous.run() if rendezvous.size > 1 else ([[]], [None])
    return TcpLink(rendezvous, data, TcpBoard(rendezvous.overlay, boards, parent, rendezvous.names))


class _Incoming:
    """A message being received: the unfilled memory, in order, and the expected head and tail.

    A short message is received into ``room`` in one piece, with its head and tail, and then copied
    to its target.
    """

    def __init__(self, content: memoryview, session: Session, room: memoryview) -> None:
        self.session = session
        self.content = content
        self.length = len(content)
        self.expected = session.incoming.envelope(self.length)
        self.short = self.length <= JOINED
        end = HEAD + self.length
        if self.short:
            self.head = room[:HEAD]
            self.body = room[HEAD:end]
            self.tail = room[end : end + TAG]
            self.parts = [room[: end + TAG]]
        else:
            self.head = memoryview(bytearray(HEAD))
            self.tail = memoryview(bytearray(TAG))
            self.parts = [self.head, content, self.tail]
        self.begun = False

    def check(self, peer: int) -> None:
        """Raise WireError if a received head or tail is wrong. ``peer``: the sender's number in
        messages.
        """
        if not self.begun and self._has_head():
            self.begun = True
            if not compare_digest(self.head, self.expected[0]):
                raise self._wrong_head(peer)
        if not self.parts:
            if not compare_digest(self.tail, self.expected[1]):
                raise self.session.tampered(peer)
            if self.short:
                self.content[:] = self.body

    def _has_head(self) -> bool:
        if self.short:
            return not self.parts or len(self.parts[0]) <= self.length + TAG
        return len(self.parts) < 3

    def _wrong_head(self, peer: int) -> WireError:
        length = self.session.incoming.instead(self.head)
        if length is None:
            return self.session.tampered(peer)
        return WireError(
            f"rank {peer} sent {length} bytes; {self.length} were expected: the ranks do not run"
            " the same collective on the same shapes",
            peer,
        )


def _next_piece(parts: list[memoryview]) -> list[memoryview]:
    """Return the buffers for the next system call."""
    if len(parts) == 1 or len(parts[-2]) <= PIECE:
        return parts
    return front(parts, PIECE + HEAD + TAG)


def _advance(parts: list[memoryview], count: int) -> None:
    """Remove ``count`` bytes from the front."""
    while parts and count >= len(parts[0]):
        count -= len(parts.pop(0))
    if count:
        parts[0] = parts[0][count:]


class TcpLink:
    """One rank's end of the mesh. ``sessions``: the data connections, by rank."""

    def __init__(
        self, rendezvous: TcpRendezvous, sessions: Sequence[Sequence[Session]], board: TcpBoard
    ) -> None:
        self.rank = rendezvous.rank
        self.size = rendezvous.size
        self.board = board
        self.ahead = AHEAD * rendezvous.streams
        self._rendezvous = rendezvous
        self._sessions = [each[0] if each else None for each in sessions]
        board.data = [
            (peer, session.sock) for peer, each in enumerate(sessions) for session in each
        ]
        self._stripes = {peer: Stripes(each) for peer, each in enumerate(sessions) if len(each) > 1}
        plain = [session.stream if session is not None else None for session in self._sessions]
        self._streams = [self._stripes.get(peer, stream) for peer, stream in enumerate(plain)]
        self._inlets = [session.sock if session is not None else None for session in self._sessions]
        self._splits = 0
        self._children: list[TcpLink] = []
        self._closed = False
        self._report: Report | None = None
        # for the short message being received
        self._room = memoryview(bytearray(HEAD + JOINED + TAG))
        self._idle = 0.0  # seconds without any transfer
        self._readahead = [bytearray() for _ in range(self.size)]
        self._readahead_limit = ASIDE * rendezvous.streams
        # peers that are not read: their limit is reached, or they have closed the connection
        self._paused: set[int] = set()
        self._by_fd = {sock.fileno(): peer for peer, sock in board.data}
        self._readiness = Readiness((board.connections.fileno(), board.stop))
        for inlet in self._inlets:
            if inlet is not None:
                self._readiness.watch(inlet, select.EPOLLIN)

    def sendrecv(self, send: Array | None, dst: int, recv: Array | None, src: int) -> None:
        """Send ``send`` to ``dst`` while filling ``recv`` from ``src``. None or an empty array
        skips that half.
        """
        self.board.check()
        outgoing = self._framed(send.data, dst) if send is not None and len(send) else []
        moved = self._send(outgoing, dst) if outgoing else 0
        incoming = self._expect(recv.data, src) if recv is not None and len(recv) else None
        polled = False
        while True:
            if incoming is not None:
                moved += self._receive(incoming, src)
                if not incoming.parts:
                    incoming = None
            if not outgoing and incoming is None:
                return
            if (
                not moved
                and not outgoing
                and incoming is not None
                and incoming.short
                and not polled
            ):
                polled, moved = True, self._poll(incoming, src)
                if not incoming.parts:
                    return
            if not moved:
                self._wait(dst if outgoing else -1, src if incoming is not None else -1)
            moved = self._send(outgoing, dst) if outgoing else 0

    def _poll(self, incoming: _Incoming, src: int) -> int:
        """Poll for a short message, which arrives before the kernel would wake a sleeping thread.

        Return the number of bytes received.
        """
        end = time.monotonic() + _SPIN
        while time.monotonic() < end:
            os.sched_yield()
            if count := self._receive(incoming, src):
                return count
        return 0

    def _framed(self, content: memoryview, dst: int) -> list[memoryview]:
        session = self._sessions[dst]
        assert session is not None
        head, tail = session.outgoing.envelope(len(content))
        if len(content) <= JOINED:
            return [memoryview(b"".join((head, content, tail)))]
        return [memoryview(head), content, memoryview(tail)]

    def _expect(self, content: memoryview, src: int) -> _Incoming:
        session = self._sessions[src]
        assert session is not None
        return _Incoming(content, session, self._room)

    def _send(self, outgoing: list[memoryview], dst: int) -> int:
        """Send as much as the kernel accepts, up to a piece. Return the number of bytes."""
        stream = self._streams[dst]
        assert stream is not None
        try:
            count = (
                stream.send(outgoing[0])
                if len(outgoing) == 1
                else stream.sendmsg(_next_piece(outgoing))
            )
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self.board.loss_of(dst) from error
        _advance(outgoing, count)
        return count

    def _receive(self, incoming: _Incoming, src: int) -> int:
        """Receive the available bytes, up to a piece. Return their number."""
        if self._readahead[src]:
            count = self._take_readahead(incoming.parts, src)
        else:
            count = self._read(incoming.parts, src)
        if count:
            _advance(incoming.parts, count)
            try:
                incoming.check(self._rendezvous.names[src])
            except WireError as error:
                self.board.fail(error)
                raise
        return count

    def _read(self, parts: list[memoryview], src: int) -> int:
        stream = self._streams[src]
        assert stream is not None
        try:
            count = (
                stream.recv_into(parts[0])
                if len(parts) == 1
                else stream.recvmsg_into(_next_piece(parts))[0]
            )
        except BlockingIOError:
            return 0
        except TamperedError as error:
            session = self._sessions[src]
            wrong = session.tampered(self._rendezvous.names[src])  # type: ignore[union-attr]
            self.board.fail(wrong)
            raise wrong from error
        except OSError as error:
            raise self.board.loss_of(src) from error
        if not count:
            raise self.board.loss_of(src)
        if src in self._stripes:
            self._select_inlet(src)
        return count

    def _take_readahead(self, parts: list[memoryview], src: int) -> int:
        """Fill ``parts`` from bytes read ahead. Return their number."""
        aside, taken = self._readahead[src], 0
        for part in parts:
            count = min(len(aside) - taken, len(part))
            part[:count] = aside[taken : taken + count]
            taken += count
        del aside[:taken]
        if not aside and src in self._paused:
            self._paused.remove(src)
            self._listen_to(src, wanted=True)
        return taken

    def _select_inlet(self, peer: int) -> None:
        """Wait for the connection with the next byte of ``peer``."""
        inlet = self._stripes[peer].inlet
        if inlet is not self._inlets[peer]:
            self._listen_to(peer, wanted=False)
            self._inlets[peer] = inlet
            self._listen_to(peer, wanted=peer not in self._paused)

    def _listen_to(self, peer: int, *, wanted: bool) -> None:
        """Set whether bytes from ``peer`` end a wait."""
        inlet = self._inlets[peer]
        assert inlet is not None
        self._readiness.watch(inlet, select.EPOLLIN if wanted else 0)

    def _wait(self, dst: int, src: int) -> None:
        """Wait until bytes can be sent to ``dst`` or arrive from ``src`` (-1: none), and serve the
        other ranks in the meantime.
        """
        outlet = self._outlet(dst) if dst >= 0 else None
        events = self._readiness.events(outlet) if outlet is not None else 0
        if outlet is not None:
            self._readiness.watch(outlet, events | select.EPOLLOUT)
        try:
            ready = self._readiness.poll(_REPORT_SECONDS)
        finally:
            if outlet is not None:
                self._readiness.watch(outlet, events)
        self._idle = 0.0 if ready else self._idle + _REPORT_SECONDS
        if self._idle:
            self.board.check_hosts(self._idle)
        if self._idle and self._report is not None:
            self._report([src if src >= 0 else dst], self._idle)
        for fd, events in ready:
            peer = self._by_fd.get(fd)
            if peer is None:
                if self.board.pump():
                    self.board.wake()
                self.board.check()
            elif peer != src and events & ~select.EPOLLOUT:
                self._read_ahead(peer)

    def _outlet(self, peer: int) -> socket.socket | None:
        """Return the connection for the next byte to ``peer``."""
        stripes = self._stripes.get(peer)
        return self._inlets[peer] if stripes is None else stripes.outlet

    def _read_ahead(self, peer: int) -> None:
        stream, aside, striped = self._streams[peer], self._readahead[peer], peer in self._stripes
        assert stream is not None
        while True:
            try:
                data = stream.recv(min(1 << 18, self._readahead_limit - len(aside)))
            except BlockingIOError:
                return
            except OSError:
                data = b""
            aside += data
            if not data or len(aside) >= self._readahead_limit:
                self._paused.add(peer)  # a hang-up is an error only if the peer is needed
                self._listen_to(peer, wanted=False)
                return
            if not striped:
                return
            # TLS may buffer bytes of that connection, which epoll does not see
            self._select_inlet(peer)

    def split(self, ranks: Sequence[int]) -> TcpLink | None:
        """Return a link among ``ranks``, in that order, over its own connections; None on a rank
        outside them.
        """
        return self._split(ranks, self._rendezvous.streams)

    def _split(self, ranks: Sequence[int], streams: int) -> TcpLink | None:
        self._splits += 1
        if self.rank not in ranks:
            return None
        was = self._rendezvous
        scope = f"{was.scope}/{self._splits}:{'-'.join(map(str, ranks))}"
        place = list(ranks).index(self.rank)
        again = TcpRendezvous(
            rank=place,
            size=len(ranks),
            secret=was.secret,
            scope=scope,
            store=was.store,
            timeout=was.timeout,
            host=was.host,
            check=self._check,
            streams=streams,
            names=[was.names[rank] for rank in ranks],
        )
        child = _meet(again, self.board)
        self._children.append(child)
        return child

    def _check(self) -> None:
        self.board.pump()
        self.board.check()

    def streams(self) -> TcpStreams:
        """See ``contracts.Streaming``."""
        link = self._split(range(self.size), 1)
        assert link is not None
        return TcpStreams(link, link.board, link._sessions)

    def report_waits(self, report: Report) -> None:
        self._report = report

    def abort(self, why: str) -> None:
        """Wake every waiting rank, on this wire and its splits.

        This wire is aborted first: a rank woken by a split then finds this wire lost, too.
        """
        self.board.abort(why)
        for child in self._children:
            child.abort(why)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for child in self._children:
            child.close()
        self.board.close()
        self._readiness.close()
        for _, sock in self.board.data:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
