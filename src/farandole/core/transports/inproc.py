"""A transport between threads of one process: a test double of the other transports, also for
experiments.

A send of up to ``ahead`` bytes is copied and does not wait. A longer send waits for its receive,
like a network with full buffers. ``World(size, ahead=0)`` is the strictest transport: every send
waits for its receive.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farandole.errors import HorovodInternalError, PeerLostError

if TYPE_CHECKING:
    from farandole.base.contracts import Report
    from farandole.base.types import Array


class World:
    """The shared state of the ranks. ``link(rank)`` is one rank's end."""

    def __init__(self, size: int, ahead: int = 1 << 20, names: Sequence[int] = ()) -> None:
        self.size = size
        self.names = names or range(size)  # the ranks' numbers in errors
        self.ahead = ahead
        self.lock = threading.Lock()
        # per rank: notified when a message arrives for it
        self.arrived = [threading.Condition(self.lock) for _ in range(size)]
        self.boards = [_Board(self, rank) for rank in range(size)]
        self.mail: dict[tuple[int, int], deque[_Message]] = {}
        self.closed: set[int] = set()
        self.why = ""
        self.who = -1
        self.subworlds: dict[tuple[int, tuple[int, ...]], World] = {}

    def link(self, rank: int) -> InprocLink:
        """Return the end of ``rank``. Call it once for each rank."""
        return InprocLink(self, rank)

    def abort(self, why: str, who: int) -> None:
        """Wake all ranks with an error. The first reason is kept."""
        with self.lock:
            if not self.why:
                self.why = why or "the transport was aborted"
                self.who = who
            self.wake_all()
            subworlds = list(self.subworlds.values())
        for world in subworlds:
            world.abort(why, who)

    def leave(self, rank: int) -> None:
        with self.lock:
            self.closed.add(rank)
            self.wake_all()

    def wake_all(self) -> None:
        for condition in self.arrived:
            condition.notify_all()
        for board in self.boards:
            board.changed.notify_all()

    def check(self, needed: Sequence[int]) -> None:
        """Raise PeerLostError if the wire was aborted or one of the ranks ``needed`` has left.
        Requires the lock.
        """
        if self.why:
            raise PeerLostError(self.why, self.who)
        gone = self.closed.intersection(needed)
        if gone:
            name = self.names[min(gone)]
            raise PeerLostError(f"rank {name} closed its end while it was still needed", name)


class _Message:
    """Bytes in transfer: a copy, or the memory of the sender, which then waits for ``taken``."""

    def __init__(self, data: Array, *, waits: bool) -> None:
        self.data = data
        self.waits = waits
        self.taken = False


class InprocLink:
    """One rank's end of a World."""

    def __init__(self, world: World, rank: int) -> None:
        self.rank = rank
        self.size = world.size
        self.ahead = world.ahead
        self.board = world.boards[rank]
        self._world = world
        self._splits = 0
        self._children: list[InprocLink] = []

    def sendrecv(self, send: Array | None, dst: int, recv: Array | None, src: int) -> None:
        """Send ``send`` to ``dst`` while filling ``recv`` from ``src``. None or an empty array
        skips that half.
        """
        sent = self._post(send, dst) if send is not None and len(send) else None
        if recv is not None and len(recv):
            self._take(recv, src)
        if sent is not None and sent.waits:
            self._wait_for_room(sent, dst)

    def _wait_for_room(self, sent: _Message, dst: int) -> None:
        """Wait until ``sent`` is received, or until it fits within ``ahead`` and can remain as a
        copy.
        """
        world = self._world
        with world.lock:
            box = world.mail[self.rank, dst]
            while not sent.taken:
                if (
                    box
                    and box[-1] is sent
                    and sum(len(message.data) for message in box) <= world.ahead
                ):
                    sent.data = sent.data.copy()
                    return
                world.check([dst])
                world.arrived[self.rank].wait()

    def _post(self, send: Array, dst: int) -> _Message:
        world = self._world
        with world.lock:
            world.check([dst])
            box = world.mail.setdefault((self.rank, dst), deque())
            waits = sum(len(queued.data) for queued in box) + len(send) > world.ahead
            message = _Message(send if waits else send.copy(), waits=waits)
            box.append(message)
            world.arrived[dst].notify_all()
        return message

    def _take(self, recv: Array, src: int) -> None:
        world = self._world
        with world.lock:
            box = world.mail.setdefault((src, self.rank), deque())
            while not box:
                world.check([src])
                world.arrived[self.rank].wait()
            message = box.popleft()
            world.arrived[src].notify_all()
        if len(message.data) != len(recv):
            sender, receiver = world.names[src], world.names[self.rank]
            why = (
                f"rank {sender} sent {len(message.data)} bytes; rank {receiver} expected"
                f" {len(recv)}"
            )
            self.abort(why)
            raise HorovodInternalError(why)
        recv[:] = message.data
        with world.lock:
            message.taken = True
            if message.waits:
                world.arrived[src].notify_all()

    def split(self, ranks: Sequence[int]) -> InprocLink | None:
        """Return a link among ``ranks``, in that order; None on a rank that is not among them."""
        self._splits += 1
        if self.rank not in ranks:
            return None
        key = (self._splits, tuple(ranks))
        with self._world.lock:
            self._world.check([])
            if key not in self._world.subworlds:
                self._world.subworlds[key] = World(
                    len(ranks), self.ahead, [self._world.names[rank] for rank in ranks]
                )
            child = self._world.subworlds[key].link(ranks.index(self.rank))
        self._children.append(child)
        return child

    def report_waits(self, report: Report) -> None:
        """Ignore the request: threads of one process stop together."""

    def abort(self, why: str) -> None:
        """Wake every waiting rank, on this wire and its splits."""
        self._world.abort(why, self._world.names[self.rank])

    def close(self) -> None:
        for child in self._children:
            child.close()
        self._world.leave(self.rank)


class _Board:
    """One rank's view of the notice board. ``messages[i]``: posts of rank i that this rank has not
    collected.
    """

    def __init__(self, world: World, rank: int) -> None:
        self.changed = threading.Condition(world.lock)
        self.messages: list[deque[bytes]] = [deque() for _ in range(world.size)]
        self.news = False
        self._world = world
        self._rank = rank

    def post(self, message: bytes) -> None:
        with self._world.lock:
            self._world.check([])
            if self.messages[self._rank]:
                raise HorovodInternalError(
                    f"rank {self._rank} posted twice in one round of the board"
                )
            for board in self._world.boards:
                board.messages[self._rank].append(bytes(message))
                if board is not self:
                    board.news = True
                    board.changed.notify_all()

    def started(self) -> bool:
        return any(box for rank, box in enumerate(self.messages) if rank != self._rank)

    def missing(self) -> list[int]:
        return [rank for rank, box in enumerate(self.messages) if not box]

    def collect(self) -> list[bytes] | None:
        with self._world.lock:
            if not all(self.messages):
                return None
            return [box.popleft() for box in self.messages]

    def wait(self, seconds: float, *, spin: bool) -> None:
        """Wait for news without spinning: threads share the interpreter lock, so polling would
        delay other threads.
        """
        deadline = time.monotonic() + seconds
        with self._world.lock:
            while not self.news:
                posted = bool(self.messages[self._rank])
                self._world.check([rank for rank in self.missing() if posted])
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self.changed.wait(left)
            self.news = False

    def verify(self) -> None:
        with self._world.lock:
            self._world.check([])

    def wake(self) -> None:
        with self._world.lock:
            self.news = True
            self.changed.notify_all()
