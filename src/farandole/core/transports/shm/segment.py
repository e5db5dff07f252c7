"""One shared segment per rank, mapped by all ranks: flags, a notice board and staging memory.

Three rules make segments safe without locks: each word has one writer, counters only grow, and data
is written before the counter that announces it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from farandole.base.contracts import Report
from farandole.core.transports.shm import futex, memory, rendezvous
from farandole.core.transports.shm.peer_sockets import PeerSockets
from farandole.errors import PeerLostError

# The control page: byte offsets, one cache line (64 bytes) each.
PROGRESS, POSTED, SLEEPING, BELL, ABORTED, LEFT, REASON_LENGTH = (64 * i for i in range(7))
PUBLISHED = 8 * 64  # two words, see ``ShmTransport.publish``; ``registered`` uses line 7
REASON, REASON_MAX = 1024, 2048
NOTICES = memory.PAGE  # two notices: length, more-to-come, text
# large enough for a message with attached elements (``core/engine/attached``)
NOTICE = 16 << 10
NOTICE_HEADER = 16
SMALLS = NOTICES + 2 * NOTICE  # two areas for tensors that are exchanged completely
SMALL = 256 << 10
STAGING = SMALLS + 2 * SMALL

_AT = PROGRESS // 8
# To wait: poll; then poll and yield; then sleep. Sleeping immediately has a hidden cost: a woken
# rank tends to run on the core of the rank that woke it, and the scheduler does not give a second
# core to two ranks that alternate on one. Each spin takes about 50 ns. If ranks outnumber cores,
# they do not spin, because spinning would take the core from the awaited rank.
_SPINS = 400
_YIELD_SECONDS, _YIELD_SECONDS_CROWDED = 1e-3, 1e-4
_CHECK_SECONDS = 0.02  # interval at which a sleeping rank checks that its peers are alive
_LONGEST_SLEEP = 0.05
_REPORT_SECONDS = 0.5


class Segment:
    """The segments of all ranks of one host, as mapped by one rank."""

    def __init__(
        self,
        rank: int,
        size: int,
        peers: Mapping[int, socket.socket],
        staging: int,
        *,
        crowded: bool,
        patience: float,
        parent: Segment | None = None,
        names: Sequence[int] = (),
    ) -> None:
        """Create this rank's segment and map the others. Collective.

        ``parent``: the segment from which this one was split; its abort also aborts this one.
        ``names``: the numbers of the ranks in messages and errors.
        """
        self.parent = parent
        self.names = names or range(size)
        self.rank = rank
        self.size = size
        self.sockets = PeerSockets(peers)
        self.patience = patience
        self._handing = threading.Lock()
        views, self.bytes = zip(*self.share(STAGING + staging), strict=True)
        self.words = [view.cast("Q") for view in views]  # flags, 8 bytes each
        self.chars = [view.cast("B") for view in views]
        self._bells = [view[BELL : BELL + 4].cast("I") for view in views]
        self._bell_addresses = [array.ctypes.data + BELL for array in self.bytes]
        self.others = [peer for peer in range(size) if peer != rank]
        self._spins = range(1 if crowded else _SPINS)
        self._yield_seconds = _YIELD_SECONDS_CROWDED if crowded else _YIELD_SECONDS
        self._checked = time.monotonic()
        self._published = 0
        self.wakes = 0
        self.report: Report | None = None

    def share(self, nbytes: int) -> list[tuple[memoryview, np.ndarray]]:
        """Allocate ``nbytes`` on every rank, and map the memory of all ranks. Collective.

        Return (bytes, uint8 array) of each rank, in rank order. Raises PeerLostError if a rank is
        lost meanwhile.
        """
        with self._handing:
            mine = memory.create(nbytes)
            for peer, sock in self.sockets.by_rank.items():
                try:
                    rendezvous.hand_over(sock, mine)
                except (BrokenPipeError, ConnectionResetError) as error:
                    name = self.names[peer]
                    raise PeerLostError(
                        f"rank {name} ended before it received shared memory", name
                    ) from error
            fds = {
                peer: rendezvous.receive(sock, self.names[peer], self.patience)
                for peer, sock in self.sockets.by_rank.items()
            }
            fds[self.rank] = mine
            return [memory.attach(fds[rank], nbytes) for rank in range(self.size)]

    # Progress: one counter per rank. The meaning of a value follows from the sequence of
    # collectives, which is the same on all ranks.

    def publish(self) -> None:
        """Announce that this rank has finished its next stage."""
        futex.publish_fence()
        self._published += 1
        self.words[self.rank][_AT] = self._published
        self.wake_others()

    @property
    def published(self) -> int:
        return self._published

    def await_all(self, stage: int) -> None:
        """Wait until all other ranks have announced ``stage``."""
        for peer in self.others:
            self.await_one(peer, stage)

    def await_one(self, peer: int, stage: int) -> None:
        words = self.words[peer]
        for _ in self._spins:
            if words[_AT] >= stage:
                return
        self.wait_until(lambda: words[_AT] >= stage, self.patience, peer=peer, stage=stage)

    # Waiting.

    def wait_until(
        self,
        condition: Callable[[], bool],
        seconds: float,
        *,
        spin: bool = True,
        peer: int = -1,
        stage: int = 0,
    ) -> bool:
        """Wait up to ``seconds`` until ``condition()`` holds, and return whether it holds.

        Polls briefly, then sleeps on this rank's bell. With ``peer``, this is a wait inside a
        collective until ``peer`` reaches ``stage``, and long waits are reported
        (``report_waits``). Raises PeerLostError if a peer is gone or the segment was aborted, and
        with ``peer`` also after ``seconds``.
        """
        began = reported = time.monotonic()
        deadline = began + seconds
        if spin:
            until = time.monotonic() + min(seconds, self._yield_seconds)
            while time.monotonic() < until:
                if condition():
                    return True
                os.sched_yield()
        words, bell = self.words[self.rank], self._bells[self.rank]
        pause = 0.002
        try:
            while True:
                bell_value = bell[0]
                words[SLEEPING // 8] = 1
                futex.fence()
                if condition():
                    return True
                now = time.monotonic()
                if now >= deadline:
                    break
                try:
                    self._check(now)
                except PeerLostError:
                    if condition():  # the peer finished its part before it left
                        return True
                    raise
                if peer >= 0 and now - reported >= _REPORT_SECONDS and self.report is not None:
                    reported = now
                    behind = [other for other in self.others if self.words[other][_AT] < stage]
                    self.report(behind or [peer], now - began)
                futex.sleep_while(
                    self._bell_addresses[self.rank], bell_value, min(pause, deadline - now)
                )
                pause = min(pause * 2, _LONGEST_SLEEP)
        finally:
            words[SLEEPING // 8] = 0
        if peer >= 0:
            name = self.names[peer]
            raise PeerLostError(
                f"rank {name} did not take part in a collective for {seconds:g} s", name
            )
        return False

    def wake_others(self) -> None:
        """Wake the sleeping ranks."""
        futex.fence()
        for peer in self.others:
            if self.words[peer][SLEEPING // 8]:
                self._wake(peer)

    def wake_one(self, peer: int) -> None:
        """Wake ``peer`` if it is sleeping."""
        futex.fence()
        if self.words[peer][SLEEPING // 8]:
            self._wake(peer)

    def wake_self(self) -> None:
        """Wake the waiting thread of this rank.

        Calls are counted, so that a call between two waits is not lost.
        """
        self.wakes += 1
        self._wake(self.rank)

    def _wake(self, peer: int) -> None:
        bell = self._bells[peer]
        bell[0] = (bell[0] + 1) & 0xFFFFFFFF
        futex.wake(self._bell_addresses[peer])

    # Failure.

    def _check(self, now: float) -> None:
        if now - self._checked < _CHECK_SECONDS and not self._aborted_by():
            return
        self._checked = now
        self.check()

    def check(self) -> None:
        """Raise PeerLostError if the segment was aborted or a peer is gone."""
        self.check_abort()
        gone = self.sockets.ready()
        died = [
            peer for peer in gone if self.sockets.hung_up(peer) and not self.words[peer][LEFT // 8]
        ]
        if gone:
            self.check_abort()  # a rank that has left since may have recorded the reason
        for peer in died:
            raise dead(self.names[peer])
        for peer in gone:
            if self.words[peer][LEFT // 8]:
                raise left(self.names[peer])

    def check_alive(self) -> None:
        """Raise PeerLostError if the segment was aborted or a peer died. Thread-safe.

        A peer that left in order is not an error.
        """
        self.check_abort()
        for peer in self.others:
            if (
                not self.words[peer][LEFT // 8]
                and self.sockets.hung_up(peer)
                and not self.words[peer][LEFT // 8]
            ):
                raise dead(self.names[peer])

    def check_abort(self) -> None:
        """Raise PeerLostError if this segment or one of its parents was aborted."""
        for peer in self._aborted_by():
            raise PeerLostError(self._reason(peer), self.names[peer])
        if self.parent is not None:
            self.parent.check_abort()

    def _aborted_by(self) -> list[int]:
        return [peer for peer in range(self.size) if self.words[peer][ABORTED // 8]]

    def gone(self, peer: int) -> PeerLostError | None:
        """Return the error for ``peer`` if it is gone; None if it is connected."""
        if not self.sockets.hung_up(peer):
            return None
        if self.words[peer][LEFT // 8]:
            return left(self.names[peer])
        return dead(self.names[peer])

    def _reason(self, peer: int) -> str:
        length = self.words[peer][REASON_LENGTH // 8]
        return bytes(self.chars[peer][REASON : REASON + length]).decode(errors="replace")

    def abort(self, why: str) -> None:
        """Make every wait of every rank raise PeerLostError with ``why``."""
        if self.words[self.rank][ABORTED // 8]:
            return
        text = why.encode()[:REASON_MAX]
        self.chars[self.rank][REASON : REASON + len(text)] = text
        self.words[self.rank][REASON_LENGTH // 8] = len(text)
        futex.publish_fence()
        self.words[self.rank][ABORTED // 8] = 1
        for peer in range(self.size):
            self._wake(peer)

    def close(self) -> None:
        """Leave in order. Peers that need this rank later then report a departure, not a death."""
        self.words[self.rank][LEFT // 8] = 1
        futex.publish_fence()
        for peer in self.others:
            self._wake(peer)
        self.sockets.close()


def dead(rank: int) -> PeerLostError:
    return PeerLostError(f"rank {rank} died", rank)


def left(rank: int) -> PeerLostError:
    return PeerLostError(
        f"rank {rank} has left: it shut down or its program ended", rank, left=True
    )
