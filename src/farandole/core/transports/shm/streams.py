"""Byte streams between the ranks of a host: a ring in shared memory for each pair and direction.

The ring to another rank is in the sender's memory, with three counters. The sender counts the bytes
written, the receiver the bytes read; both only grow. The third, also the sender's, is the number of
the first byte in the ring: an empty ring is refilled from its start, so small messages stay in the
same few cached pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from farandole.base.host import cores
from farandole.core.transports.shm import futex, memory
from farandole.core.transports.shm.segment import LEFT, STAGING, Segment
from farandole.errors import PeerLostError

if TYPE_CHECKING:
    from farandole.base.types import Array

# bytes: largest and smallest ring; all rings of a rank
RING, SMALLEST, BUDGET = 4 << 20, 64 << 10, 16 << 20
# bytes to copy before notifying the other end: both ends then copy concurrently, in cache
CHUNK = 512 << 10
_CHUNKS = 4  # minimum number in a ring: with fewer, the ends often wait for each other
_LINE = 64  # bytes for the counters of a pair: written, read, first


class _Control(Segment):
    """The flags and bells of the streams. A lost peer is an error only for waits that need the
    peer.
    """

    def check(self) -> None:
        self.check_abort()

    def leave(self) -> None:
        """Announce that this rank leaves in order, before its sockets are closed."""
        self.words[self.rank][LEFT // 8] = 1
        futex.publish_fence()


class ShmStreams:
    """See ``contracts.ByteStreams``."""

    overhead = 0  # only the ranks can write to this memory

    def __init__(self, segment: Segment) -> None:
        self.rank = segment.rank
        self.size = segment.size
        self.names = segment.names
        self._ring = memory.round_up(max(SMALLEST, min(RING, BUDGET // self.size)))
        self._chunk = min(CHUNK, self._ring // _CHUNKS)
        self._rings = STAGING + memory.round_up(_LINE * self.size)
        room = self._rings - STAGING + self._ring * self.size
        self._control = _Control(
            segment.rank,
            segment.size,
            segment.sockets.by_rank,
            room,
            crowded=self.size > cores(),
            patience=segment.patience,
            parent=segment,
            names=segment.names,
        )
        self._seen_wakes = 0
        self._lines = [(STAGING + _LINE * peer) // 8 for peer in range(self.size)]

    def write(self, dst: int, data: Array) -> int:
        control, line = self._control, self._lines[dst]
        mine = control.words[self.rank]
        written = mine[line]
        unread = written - control.words[dst][self._lines[self.rank] + 1]
        count: int = min(self._ring - unread, len(data), self._chunk)
        if not count:
            return 0
        if not unread:
            mine[line + 2] = written
        base, start = self._rings + dst * self._ring, (written - mine[line + 2]) % self._ring
        first = min(count, self._ring - start)
        ring = control.bytes[self.rank]
        ring[base + start : base + start + first] = data[:first]
        if first < count:
            ring[base : base + count - first] = data[first:count]
        futex.publish_fence()
        mine[line] = written + count
        control.wake_one(dst)
        return count

    def read(self, src: int, into: Array) -> int:
        control, line = self._control, self._lines[src] + 1
        mine, theirs, there = control.words[self.rank], control.words[src], self._lines[self.rank]
        taken = mine[line]
        count: int = min(theirs[there] - taken, len(into), self._chunk)
        if not count:
            return 0
        base, start = self._rings + self.rank * self._ring, (taken - theirs[there + 2]) % self._ring
        first = min(count, self._ring - start)
        ring = control.bytes[src]
        into[:first] = ring[base + start : base + start + first]
        if first < count:
            into[first:count] = ring[base : base + count - first]
        futex.publish_fence()
        mine[line] = taken + count
        control.wake_one(src)
        return count

    def seal(self, dst: int, content: bytes) -> bytes:
        return content

    def open(self, src: int, sealed: bytes) -> bytes:
        return sealed

    def wait(
        self, seconds: float, sources: Sequence[int], targets: Sequence[int], *, spin: bool
    ) -> None:
        control, me = self._control, self._lines[self.rank]
        mine = control.words[self.rank]
        coming = [(control.words[src], self._lines[src] + 1) for src in sources]
        going = [(control.words[dst], self._lines[dst]) for dst in targets]

        def ready() -> bool:
            for theirs, line in coming:  # plain loops, for speed: this is called repeatedly
                if theirs[me] != mine[line]:
                    return True
            for theirs, line in going:
                if mine[line] - theirs[me + 1] < self._ring:
                    return True
            return control.wakes != self._seen_wakes

        control.wait_until(ready, seconds, spin=spin)
        self._seen_wakes = control.wakes

    def wake(self) -> None:
        self._control.wake_self()

    def gone(self, peer: int) -> PeerLostError | None:
        control = self._control
        lost = control.gone(peer)  # first: a lost peer sends nothing more
        if (
            control.words[peer][self._lines[self.rank]]
            != control.words[self.rank][self._lines[peer] + 1]
        ):
            return None  # earlier bytes can still be read
        try:
            if lost is not None:
                control.check_abort()  # the peer may have given the reason
        except PeerLostError as error:
            return error
        return lost

    def abort(self, why: str) -> None:
        self._control.abort(why)

    def close(self) -> None:
        """Leave the streams. The sockets belong to the transport and stay open."""
        self._control.leave()
