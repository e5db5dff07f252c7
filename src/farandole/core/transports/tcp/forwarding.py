"""The neighbours of a board, and the messages that a rank of a tree forwards between them."""

from __future__ import annotations

import math
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from farandole.base import threads
from farandole.core.transports.tcp.rounds import ForwardQueue, MessageRun
from farandole.net.handshake import Session

RUNS, GOODBYE = b"r", b"g"  # the first byte of a forwarded frame
RANK = struct.Struct("<i")  # the subject of an abort or a goodbye
RELAY_SECONDS = 0.25  # between two runs of the forwarding thread


class Neighbour:
    """The connection to one rank, and the received bytes. ``name``: the rank's number in
    messages.
    """

    def __init__(self, rank: int, name: int, session: Session) -> None:
        self.rank = rank
        self.name = name
        self.session = session
        self.sock = session.sock
        self.stream = session.stream
        self.unread = bytearray()  # the start of a frame
        self.length = -1  # length of that frame, once its head has arrived
        self.outbox: deque[memoryview] = deque()
        self.open = True
        self.blocked = False  # currently accepts no more bytes
        # in a tree: the messages of other ranks to send to this neighbour
        self.forward_queue: ForwardQueue | None = None
        self.departures: list[int] = []  # the ranks whose goodbyes are to be sent


class Forwarder:
    """Forwards messages to ``neighbours``, which is empty without a tree.

    ``totals``: by neighbour, the number of messages per round that it receives from this side. A
    thread forwards them periodically while the program computes.
    """

    def __init__(
        self, neighbours: Sequence[Neighbour], totals: Mapping[int, int], thread_name: str
    ) -> None:
        self.neighbours = neighbours
        for peer in neighbours:
            peer.forward_queue = ForwardQueue(totals[peer.rank])
        self._thread_name = thread_name
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start(self, look: Callable[[], None]) -> None:
        """Call ``look`` periodically on a new thread."""
        if self.neighbours:
            self._thread = threading.Thread(
                target=self._look_periodically, args=(look,), name=self._thread_name, daemon=True
            )
            threads.start(self._thread)

    def stop(self) -> None:
        self._stopped.set()

    def join(self, seconds: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def add(self, run: MessageRun, source: Neighbour | None = None) -> None:
        """Queue messages for all neighbours except their sender."""
        now = time.monotonic()
        for peer in self.neighbours:
            if peer is not source and peer.forward_queue is not None:
                peer.forward_queue.add(run, now)

    def add_departures(self, source: Neighbour, ranks: Sequence[int]) -> None:
        """Queue the goodbyes of ``ranks`` for all neighbours except ``source``."""
        for peer in self.neighbours:
            if peer is not source:
                peer.departures += ranks

    def due(self) -> float:
        """Return the time at which queued messages must be forwarded, complete or not."""
        return min(
            (peer.forward_queue.due for peer in self.neighbours if peer.forward_queue is not None),
            default=math.inf,
        )

    def take(self, *, everything: bool) -> Iterator[tuple[Neighbour, bytes]]:
        """Yield the frames that are due, or all of them, with their targets."""
        now = math.inf if everything else time.monotonic()
        for peer in self.neighbours:
            forward_queue = peer.forward_queue
            if (
                forward_queue is not None
                and forward_queue.waiting
                and (forward_queue.due <= now or peer.departures)
            ):
                yield peer, RUNS + forward_queue.take()
            if peer.departures:
                yield peer, GOODBYE + b"".join(map(RANK.pack, peer.departures))
                peer.departures.clear()

    def _look_periodically(self, look: Callable[[], None]) -> None:
        while not self._stopped.wait(RELAY_SECONDS):
            look()
