"""The notice board over one connection per neighbour, which also carries the reason of an abort and
the goodbye.

Up to ``overlay.DIRECT`` ranks are all neighbours; more ranks form a tree (``overlay``) and forward
messages. Only ``wait`` blocks. Bytes not yet accepted by a neighbour stay in its outbox; they are
sent whenever the board, or the link while it waits for data, checks the connections. A round is
collected only once its messages are sent, so a rank may ignore the board after ``collect``. In a
tree, a thread forwards messages periodically while the program computes: a round cannot end without
that rank, but the other ranks learn which ranks are missing, and why the wire was aborted.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import socket
import threading
import time
from collections.abc import Sequence

from farandole.core.transports.tcp.forwarding import GOODBYE, RANK, RUNS, Forwarder, Neighbour
from farandole.core.transports.tcp.overlay import Overlay
from farandole.core.transports.tcp.rounds import BoardRounds, MessageRun, unpacked
from farandole.errors import HorovodInternalError, PeerLostError, WireError
from farandole.net import liveness
from farandole.net.handshake import HEAD, TAG, Session, TamperedError

_POST, _ABORT = b"p", b"a"  # the first byte of a frame
_LIMIT = 1 << 32  # maximum bytes of a frame
_READ = 1 << 18  # maximum bytes of one system call
_SPIN = 200e-6  # seconds for which a reader polls for a message before it sleeps
_UNREACHABLE = (
    errno.ETIMEDOUT,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ENETDOWN,
    errno.EHOSTDOWN,
)
_FAREWELL = 1.0  # seconds for a peer to receive the last messages


class TcpBoard:
    """One rank's board.

    - ``sessions``: The sessions by rank, None without a connection; their sockets are non-blocking.
    - ``parent``: The board of the parent wire, whose loss is also the loss of this one.
    - ``names``: The numbers of the ranks in messages and errors.
    """

    def __init__(
        self,
        place: Overlay,
        sessions: Sequence[Session | None],
        parent: TcpBoard | None = None,
        names: Sequence[int] = (),
    ) -> None:
        self.names = names or range(place.size)
        self.rank = place.rank
        self.name = self.names[place.rank]
        self._overlay = place
        self._parent = parent
        self.lost: PeerLostError | WireError | None = None  # set once, permanently
        # the link's data connections, with their peers
        self.data: Sequence[tuple[int, socket.socket]] = ()
        self.connections = select.epoll()  # readable when a peer has sent data
        # readable permanently once the wire is lost
        self.stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._rounds = BoardRounds(place.rank, place.size)
        self._gone: dict[int, None] = {}  # ranks that left in order, in the order of departure
        self._news = False
        self._reported = False  # whether the loss was sent to all ranks
        self._closed = False
        self._lock = threading.RLock()
        self._peers = {
            peer: Neighbour(peer, self.names[peer], session)
            for peer, session in enumerate(sessions)
            if session is not None
        }
        self._by_fd = {peer.sock.fileno(): peer for peer in self._peers.values()}
        family = (parent.connections.fileno(), parent.stop) if parent is not None else ()
        for fd in (*self._by_fd, *family):
            self.connections.register(fd, select.EPOLLIN)
        self._waiter = select.poll()
        for fd in (self.connections.fileno(), self.stop, self._bell):
            self._waiter.register(fd, select.POLLIN)
        self._forwarder = Forwarder(
            [peer for peer in self._peers.values() if place.relays],
            {peer: place.size - place.reachable[peer] for peer in self._peers},
            f"farandole-relay-{self.rank}",
        )
        for first in list(self._peers.values()):
            # bytes received with the handshake are buffered in the stream, where epoll does not see
            # them
            self._read(first)
        self._forwarder.start(self._pump_and_wake)

    def post(self, message: bytes) -> None:
        with self._lock:
            self.check()
            if self._rounds.posted:
                raise HorovodInternalError(
                    f"rank {self.name} posted twice in one round of the board"
                )
            message = bytes(message)
            self._rounds.put(self.rank, message)
            if self._forwarder.neighbours:
                self._forwarder.add(MessageRun(self.rank, 1, message))
                self._forward()
            else:
                self._send_to_all(_POST, message)

    def started(self) -> bool:
        self.pump()
        return self._rounds.started()

    def missing(self) -> list[int]:
        self.pump()
        return self._rounds.missing(range(self._overlay.size))

    def collect(self) -> list[bytes] | None:
        with self._lock:
            self.pump()
            if not self._rounds.complete or any(peer.outbox for peer in self._peers.values()):
                return None
            return self._rounds.collect()

    def wait(self, seconds: float, *, spin: bool) -> None:
        now = time.monotonic()
        deadline, spin_until = now + seconds, now + _SPIN if spin else 0.0
        while True:
            self.pump()
            if self._news:
                self._news = False
                return
            self.check()
            self._check_needed()
            now = time.monotonic()
            if now >= deadline:
                return
            if now < spin_until:
                os.sched_yield()
                continue
            due = self._forwarder.due()
            ready = self._waiter.poll(math.ceil(max(0.0, min(deadline, due) - now) * 1000))
            if not ready and due > deadline:
                self.check_hosts()
            if any(fd == self._bell for fd, _ in ready):
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
                return

    def wake(self) -> None:
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._bell, 1)

    def verify(self) -> None:
        if self.pump():
            self.wake()  # the connections may no longer show an event to the waiting thread
        if not self._closed:
            self.check()

    def check(self) -> None:
        """Raise the error if the wire is lost."""
        if self.lost is not None:
            raise type(self.lost)(str(self.lost), self.lost.rank)

    def check_hosts(self, waited: float = math.inf) -> None:
        """Raise PeerLostError if a host has vanished: all connections to a rank are silent.

        ``waited``: seconds without data on the data connections.
        """
        with self._lock:
            own = [(peer.rank, peer.sock, math.inf) for peer in self._peers.values() if peer.open]
            data = [(rank, sock, waited) for rank, sock in self.data]
            silences: dict[int, list[tuple[bool, float]]] = {}
            for rank, sock, most in (*own, *data) if not self._closed else ():
                under_way, seconds = liveness.silence(sock)
                silences.setdefault(rank, []).append((under_way, min(seconds, most)))
            for rank, found in silences.items():
                # Idle connections are probed each second; a sending connection learns later that
                # the peer is alive.
                if (
                    any(busy for busy, _ in found)
                    and min(seconds for _, seconds in found) > liveness.LOST_SECONDS
                ):
                    self._lose(vanished(self.names[rank]))
        self.check()

    def _check_needed(self) -> None:
        """Raise PeerLostError for a departed rank if its message is missing, or a message that it
        would have forwarded.
        """
        if self._gone and self._rounds.posted:
            for rank in list(self._gone):
                if any(self._rounds.missing(ranks) for ranks in self._overlay.severed(rank)):
                    raise left(self.names[rank])

    def pump(self) -> bool:
        """Read and send as much as possible without waiting. Return whether a waiting thread should
        check again.
        """
        with self._lock:
            if self._closed:
                return False
            before = self._news
            try:
                self._check_connections()
            except HorovodInternalError:
                raise
            except BaseException as error:  # a signal handler raised: bytes may have been lost
                self.fail(
                    WireError(
                        f"rank {self.name} was interrupted while it read messages:"
                        f" {type(error).__name__}"
                    )
                )
                raise
            return self._news and not before

    def _check_connections(self) -> None:
        for fd, events in self.connections.poll(0):
            peer = self._by_fd.get(fd)
            if peer is None:
                self._check_parent()
                continue
            if events & select.EPOLLOUT:
                self._flush(peer)
            if events & ~select.EPOLLOUT:
                self._read(peer)
        if self._forwarder.neighbours:
            self._forward()

    def _pump_and_wake(self) -> None:
        if self.pump():
            self.wake()

    def _forward(self, *, everything: bool = False) -> None:
        for peer, content in self._forwarder.take(everything=everything):
            self._send(peer, content)

    def _check_parent(self) -> None:
        if self._parent is not None:
            if self._parent.pump():
                self._parent.wake()
            if self._parent.lost is not None:
                self._lose(type(self._parent.lost)(str(self._parent.lost), self._parent.lost.rank))

    def loss_of(self, rank: int, seconds: float = 3.0) -> PeerLostError | WireError:
        """Return the error for a closed data connection, after waiting for the board's report on
        ``rank``.
        """
        end = time.monotonic() + seconds
        neighbour = self._peers.get(rank)
        while self.lost is None and rank not in self._gone and time.monotonic() < end:
            if neighbour is not None and not neighbour.open:
                break
            self._waiter.poll(50)
            self.pump()
        if self.lost is None:
            return (left if rank in self._gone else vanished)(self.names[rank])
        return type(self.lost)(str(self.lost), self.lost.rank)

    def fail(self, error: WireError) -> None:
        """Fail the wire, which is no longer trustworthy, and report the error to all ranks."""
        with self._lock:
            self._lose(error, reason=f"rank {self.name} reports: {error}")

    def abort(self, why: str) -> None:
        """Report the abort to all ranks and end all waits here.

        If the wire is already lost, report that loss: all ranks know the reason when this returns,
        even if the connection from the first aborting rank is slow.
        """
        with self._lock:
            if self._closed:
                return
            if self.lost is None:
                self._lose(PeerLostError(why or "the transport was aborted", self.name), reason=why)
            elif not self._reported:
                self._send_loss(str(self.lost), self.lost.rank)
            self._finish_sending()

    def close(self) -> None:
        """Send the goodbye or, if the wire is lost, the reason, so that ranks that have not noticed
        the loss do not blame this rank.
        """
        self._forwarder.stop()
        with self._lock:
            if self._closed:
                return
            if self.lost is None:
                self._forward(everything=True)
                self._send_to_all(GOODBYE, RANK.pack(self.rank))
            elif not self._reported:
                self._send_loss(str(self.lost), self.lost.rank)
            self._finish_sending()
            self._closed = True
            self._lose(PeerLostError(f"rank {self.name} has closed its transport", self.name))
            for peer in self._peers.values():
                self._hang_up(peer)
            self.connections.close()
            os.close(self.stop)
            os.close(self._bell)
        self._forwarder.join(_FAREWELL)

    def _lose(self, error: PeerLostError | WireError, reason: str | None = None) -> None:
        """Mark the wire as lost. ``reason``: sent to all other ranks. In a tree every loss is sent,
        because few ranks can detect it.
        """
        if self.lost is not None:
            return
        self.lost = error
        os.eventfd_write(self.stop, 1)
        if reason is not None or (self._forwarder.neighbours and not self._closed):
            self._send_loss(str(error) if reason is None else reason, error.rank)

    def _send_loss(self, why: str, rank: int) -> None:
        self._reported = True
        self._send_to_all(_ABORT, RANK.pack(rank) + why.encode())

    def _send_to_all(self, kind: bytes, payload: bytes) -> None:
        content = kind + payload
        for peer in self._peers.values():
            self._send(peer, content)

    def _send(self, peer: Neighbour, content: bytes) -> None:
        if peer.open:
            head, tail = peer.session.outgoing.seal(content)
            peer.outbox.append(memoryview(b"".join((head, content, tail))))
            if not peer.blocked:
                self._flush(peer)

    def _finish_sending(self) -> None:
        """Give the outboxes a moment to empty."""
        end = time.monotonic() + _FAREWELL
        while any(peer.outbox for peer in self._peers.values()) and time.monotonic() < end:
            self.connections.poll(0.05)
            self.pump()

    def _flush(self, peer: Neighbour) -> None:
        blocked = False
        try:
            while peer.outbox:
                sent: list[int] = []
                # a signal handler may raise after any call: this call both sends and records it
                try:
                    sent.extend(map(peer.stream.send, (peer.outbox[0],)))
                finally:
                    if sent and (rest := peer.outbox[0][sent[0] :]):
                        peer.outbox[0] = rest
                    elif sent:
                        del peer.outbox[0]
        except BlockingIOError:
            blocked = True
        except OSError as error:
            peer.outbox.clear()  # the peer is gone; its last message is not read yet
            self._on_broken(peer, error)
        if blocked != peer.blocked:
            peer.blocked = blocked
            self.connections.modify(peer.sock, select.EPOLLIN | (select.EPOLLOUT if blocked else 0))
            self._news = self._news or not blocked  # the round may now be complete

    def _read(self, peer: Neighbour) -> None:
        try:
            while data := peer.stream.recv(_READ):
                if self.lost is not None:
                    return  # the wire is lost
                peer.unread += data
                self._parse(peer)
                if len(data) < _READ:
                    return  # no more bytes are available
        except BlockingIOError:
            return
        except TamperedError:
            self.fail(peer.session.tampered(peer.name))
            return
        except OSError as error:
            self._on_broken(peer, error)
        self._hang_up(peer)

    def _parse(self, peer: Neighbour) -> None:
        incoming, unread = peer.session.incoming, peer.unread
        while len(unread) >= HEAD and self.lost is None:
            if peer.length < 0:
                length = incoming.length(unread[:HEAD])
                if length is None:
                    return self.fail(peer.session.tampered(peer.name))
                if not 0 < length <= _LIMIT:
                    return self.fail(
                        WireError(
                            f"rank {peer.name} announced a message of {length} bytes", peer.name
                        )
                    )
                peer.length = length
            end = HEAD + peer.length
            if len(unread) < end + TAG:
                return None
            content = bytes(memoryview(unread)[HEAD:end])
            if not incoming.opens(content, unread[end : end + TAG]):
                return self.fail(peer.session.tampered(peer.name))
            del unread[: end + TAG]
            peer.length = -1
            self._dispatch(peer, content[:1], content[1:])
        return None

    def _dispatch(self, peer: Neighbour, kind: bytes, payload: bytes) -> None:
        if kind == _POST:
            self._put_message(peer, peer.rank, payload)
        elif kind == RUNS:
            try:
                for run in unpacked(payload, self._overlay.size):
                    self._put_message(peer, run.first, run.message, run.ranks)
                    self._forwarder.add(run, peer)
            except ValueError as error:
                self.fail(
                    WireError(
                        f"rank {peer.name} forwarded invalid messages: {error}",
                        peer.name,
                    )
                )
        elif kind == _ABORT:
            (rank,) = RANK.unpack_from(payload)
            self._lose(PeerLostError(payload[RANK.size :].decode(errors="replace"), rank))
        elif kind == GOODBYE:
            self._record_departures(peer, [rank for (rank,) in RANK.iter_unpack(payload)])
        else:
            text = f"rank {peer.name} sent a message of the unknown kind {kind!r}"
            self.fail(
                WireError(
                    f"{text}: check that all ranks run the same version of Farandole", peer.name
                )
            )

    def _put_message(self, peer: Neighbour, first: int, message: bytes, ranks: int = 1) -> None:
        if self._rounds.put(first, message, ranks):
            self._news = True
        else:
            text = f"rank {peer.name} sent a message of rank {self.names[first]} two rounds early"
            self.fail(WireError(text, peer.name))

    def _record_departures(self, source: Neighbour, ranks: Sequence[int]) -> None:
        """Record that these ranks have left in order."""
        self._gone.update(dict.fromkeys(ranks))
        self._news = True  # a thread waiting for one of them must check
        self._forwarder.add_departures(source, ranks)

    def _on_broken(self, peer: Neighbour, error: OSError) -> None:
        """Handle a broken connection. Its reason is available only once: a timeout of the peer, or
        another error.
        """
        if error.errno in _UNREACHABLE and peer.rank not in self._gone:
            self._lose(vanished(peer.name))

    def _hang_up(self, peer: Neighbour) -> None:
        """Close a connection after its end."""
        if not peer.open:
            return
        peer.open = False
        peer.outbox.clear()
        self.connections.unregister(peer.sock)
        with contextlib.suppress(OSError):
            peer.sock.shutdown(socket.SHUT_RDWR)
        self._by_fd.pop(peer.sock.fileno())
        peer.sock.close()
        if peer.rank not in self._gone and not self._closed:
            self._lose(PeerLostError(f"rank {peer.name} {PeerLostError.BROKE}", peer.name))


def vanished(rank: int) -> PeerLostError:
    return PeerLostError(f"rank {rank} {PeerLostError.SILENT}", rank)


def left(rank: int) -> PeerLostError:
    return PeerLostError(
        f"rank {rank} has left (it shut down) while it was still needed", rank, left=True
    )
