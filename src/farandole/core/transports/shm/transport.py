"""All collectives over shared memory."""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from itertools import accumulate
from math import frexp
from typing import TYPE_CHECKING

from numpy import multiply

from farandole.base.contracts import Board, Parts, Report
from farandole.base.host import cores
from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core.kernels import quiet, reduce_into, reducer
from farandole.core.transports.shm import pipeline
from farandole.core.transports.shm.board import ShmBoard
from farandole.core.transports.shm.registered import RegisteredBuffers
from farandole.core.transports.shm.rendezvous import ShmRendezvous
from farandole.core.transports.shm.segment import PUBLISHED, SMALL, SMALLS, STAGING, Segment
from farandole.core.transports.shm.streams import ShmStreams

if TYPE_CHECKING:
    from farandole.base.types import Array

_WIDE_FLOATS = (DType.FLOAT32, DType.FLOAT64)
# Bytes of slots per rank. The data in flight should fit into the L2 cache, and every chunk costs
# two waits. On 2 cores with 2 MiB of L2 cache each, 128 KiB to 256 KiB are best; with four ranks on
# two cores the size hardly matters.
_LARGEST_CHUNK, _SMALLEST_CHUNK = 256 << 10, 64 << 10
_BUDGET = 18 * _LARGEST_CHUNK


def connect(
    rank: int,
    size: int,
    secret: str,
    scope: str,
    timeout: float = 30.0,
    *,
    patience: float = 600.0,
    parent: Segment | None = None,
    names: Sequence[int] = (),
) -> ShmTransport:
    """Return the transport of ``rank`` among ``size`` ranks of this host. Collective.

    ``scope`` distinguishes the transports of one job, and is the same on all ranks. ``patience``:
    seconds to wait for a rank inside a collective. ``names``: the numbers of the ranks in messages
    and errors; default: 0, 1, 2, ... Raises RendezvousError with the missing ranks after
    ``timeout`` seconds.
    """
    peers = ShmRendezvous(rank, size, secret, scope, names).gather(timeout) if size > 1 else {}
    return join(rank, size, secret, scope, peers, patience=patience, parent=parent, names=names)


def join(
    rank: int,
    size: int,
    secret: str,
    scope: str,
    peers: dict[int, socket.socket],
    *,
    patience: float = 600.0,
    parent: Segment | None = None,
    names: Sequence[int] = (),
) -> ShmTransport:
    """Return the transport over the sockets of a ``ShmRendezvous``, one to every other rank.
    Collective.
    """
    chunk = _BUDGET // pipeline.staging(size, 1) // 4096 * 4096
    chunk = max(_SMALLEST_CHUNK, min(_LARGEST_CHUNK, chunk))
    try:
        segment = Segment(
            rank,
            size,
            peers,
            pipeline.staging(size, chunk),
            crowded=size > cores(),
            patience=patience,
            parent=parent,
            names=names,
        )
        return ShmTransport(segment, chunk, scope, secret)
    # a stored traceback would keep the sockets open, and the other ranks would wait forever
    except BaseException:
        for sock in peers.values():
            sock.close()
        raise


class ShmTransport:
    """See ``contracts.Transport``.

    Each collective divides the staging memory itself. All ranks begin and end a move together, but
    not a reduction: a slow rank may still be copying out its last results, which the next reduction
    overwrites only after that rank has announced its first stage. The small exchange alternates
    between two separate areas.
    """

    def __init__(self, segment: Segment, chunk: int, scope: str, secret: str) -> None:
        self.rank = segment.rank
        self.size = segment.size
        self._segment = segment
        self._chunk = chunk
        self._scope = scope
        self._secret = secret
        self.publish_limit = SMALL
        self.board: Board = ShmBoard(segment)
        self._slots: dict[str, pipeline.StagingSlots] = {}
        self._small: dict[str, list[list[Array]]] = {}
        self._turn = 0
        # Two ranks read each other's complete tensors as fast as halves of them; with more ranks,
        # each would read too much.
        self._exchanged = SMALL if self.size == 2 else SMALL // 8
        self._registered = RegisteredBuffers(segment)
        self._splits = 0
        self._closed = False

    # Memory.

    def allocate(self, nbytes: int) -> Array:
        return self._registered.allocate(nbytes)

    # Reductions.

    def allreduce(self, buffers: Sequence[Buffer], op: ReduceOp, scale: float = 1.0) -> None:
        dtype = buffers[0].dtype
        elements = (
            len(buffers[0].data)
            if len(buffers) == 1
            else sum(len(buffer.data) for buffer in buffers)
        )
        if self.size == 1:
            for buffer in buffers:
                reduce_into(buffer.out, [buffer.data], op, dtype, scale)
        elif elements * dtype.itemsize <= self._exchanged:
            with quiet():
                self._exchange(buffers, elements, op, dtype, scale)
        elif not self._registered.allreduce(buffers, op, scale):
            with quiet():
                pipeline.allreduce(self._segment, self._typed_slots(dtype), buffers, op, scale)

    def by_hosts(self, whole: Array, dtype: DType, between: object) -> None:
        """Reduce ``whole`` (see ``collectives.hierarchical``). On a single host, ``between`` is not
        used.
        """
        self.allreduce([Buffer(whole, whole, dtype)], ReduceOp.SUM)

    def reducescatter(
        self, buffer: Buffer, counts: Sequence[int], op: ReduceOp, scale: float = 1.0
    ) -> None:
        if self.size == 1:
            reduce_into(buffer.out, [buffer.data], op, buffer.dtype, scale)
        elif len(buffer.data):
            with quiet():
                pipeline.reducescatter(
                    self._segment, self._typed_slots(buffer.dtype), buffer, counts, op, scale
                )

    def _exchange(
        self, buffers: Sequence[Buffer], elements: int, op: ReduceOp, dtype: DType, scale: float
    ) -> None:
        """Reduce with a single wait: every rank publishes its elements and reduces all ranks'
        elements, in rank order.
        """
        if not elements:
            return
        places = self._small_places(dtype.storage)[self._turn]
        self._turn ^= 1
        mine = places[self.rank]
        # A power of two only shifts exponents, so it is applied for free while copying in.
        early = (
            scale != 1.0
            and op is ReduceOp.SUM
            and dtype in _WIDE_FLOATS
            and abs(frexp(scale)[0]) == 0.5
        )
        offset = 0
        for buffer in buffers:
            end = offset + len(buffer.data)
            if early:
                multiply(buffer.data, scale, mine[offset:end])
            else:
                mine[offset:end] = buffer.data
            offset = end
        segment = self._segment
        segment.publish()
        segment.await_all(segment.published)
        reduce = reducer(op, dtype, 1.0 if early else scale)
        if len(buffers) == 1:
            reduce(buffers[0].out, [place[:elements] for place in places])
            return
        offset = 0
        for buffer in buffers:
            end = offset + len(buffer.out)
            if end > offset:
                reduce(buffer.out, [place[offset:end] for place in places])
            offset = end

    def _small_places(self, storage: str) -> list[list[Array]]:
        places = self._small.get(storage)
        if places is None:
            places = [
                [
                    room[SMALLS + turn * SMALL : SMALLS + (turn + 1) * SMALL].view(storage)
                    for room in self._segment.bytes
                ]
                for turn in (0, 1)
            ]
            self._small[storage] = places
        return places

    def publish(self, word: int, pieces: Sequence[Array]) -> tuple[list[int], list[Array]]:
        """See ``contracts.PeerMemory``."""
        segment, turn = self._segment, self._turn
        self._turn ^= 1
        places = self._small_places("uint8")[turn]
        mine, offset = places[self.rank], 0
        for piece in pieces:
            end = offset + piece.nbytes
            mine[offset:end] = piece.view("uint8")
            offset = end
        at = PUBLISHED // 8 + turn
        segment.words[self.rank][at] = word
        segment.publish()
        segment.await_all(segment.published)
        return [words[at] for words in segment.words], places

    def streams(self) -> ShmStreams:
        """See ``contracts.Streaming``."""
        return ShmStreams(self._segment)

    def _typed_slots(self, dtype: DType) -> pipeline.StagingSlots:
        slots = self._slots.get(dtype.storage)
        if slots is None:
            slots = self._slots[dtype.storage] = pipeline.StagingSlots(
                self._segment, self._chunk, dtype.storage
            )
        return slots

    # Moves.

    def broadcast(self, data: Array, root: int) -> None:
        """Broadcast in pieces of half the staging memory: the root writes them, the other ranks
        copy them out.
        """
        if self.size == 1 or not len(data):
            return
        self.barrier()
        segment = self._segment
        half = pipeline.staging(self.size, self._chunk) // 2
        base = segment.published
        for turn, start in enumerate(range(0, len(data), half)):
            first = STAGING + turn % 2 * half
            piece = data[start : start + half]
            room = segment.bytes[root][first : first + len(piece)]
            if self.rank == root:
                if turn >= 2:
                    # this half is free: all ranks have read it
                    segment.await_all(base + turn - 1)
                room[:] = piece
                segment.publish()
            else:
                segment.await_one(root, base + turn + 1)
                piece[:] = room
                segment.publish()
        segment.await_all(segment.published)

    def allgather(self, send: Array, receive: Array, counts: Sequence[int]) -> None:
        firsts = [sum(counts[:rank]) for rank in range(self.size)]
        mine = firsts[self.rank]
        place = receive[mine : mine + counts[self.rank]]
        apart = place.ctypes.data != send.ctypes.data  # else it is already in place
        if self.size == 1:
            if apart:
                place[:] = send
            return
        views = self._registered.peer_views(send)
        if views is not None:
            if apart:
                place[:] = send
            for peer in self._segment.others:
                receive[firsts[peer] : firsts[peer] + counts[peer]] = views[peer][: counts[peer]]
            self.barrier()
            return
        half = pipeline.staging(self.size, self._chunk) // 2
        segment = self._segment
        base = segment.published
        for turn in range(math.ceil(max(counts) / half)):
            first, start = STAGING + turn % 2 * half, turn * half
            piece = send[start : start + half]
            segment.bytes[self.rank][first : first + len(piece)] = piece
            segment.publish()
            if apart:  # now, while the piece is in cache and other ranks copy their pieces
                place[start : start + half] = piece
            for peer in segment.others:
                length = min(half, counts[peer] - start)
                segment.await_one(peer, base + turn + 1)
                if length > 0:
                    to = firsts[peer] + start
                    receive[to : to + length] = segment.bytes[peer][first : first + length]
        self.barrier()

    def alltoall(
        self, send: Array, send_counts: Sequence[int], receive: Array, receive_counts: Sequence[int]
    ) -> None:
        sends, receives = _cut(send, send_counts), _cut(receive, receive_counts)
        if self.size == 1:
            receives[0][:] = sends[0]
            return
        self.exchange(sends, receives, self._largest(max(*send_counts, *receive_counts)))
        self.barrier()

    def exchange(self, sends: Sequence[Array], receives: Sequence[Array], largest: int) -> None:
        """See ``contracts.PeerMemory``."""
        me, segment = self.rank, self._segment
        receives[me][:] = sends[me]
        part = pipeline.staging(self.size, self._chunk) // (2 * self.size)
        base = segment.published
        for turn in range(math.ceil(largest / part)):
            room, start = STAGING + turn % 2 * part * self.size, turn * part
            for peer in segment.others:
                piece = sends[peer][start : start + part]
                if len(piece):
                    to = room + peer * part
                    segment.bytes[me][to : to + len(piece)] = piece
            segment.publish()
            for peer in segment.others:
                piece = receives[peer][start : start + part]
                segment.await_one(peer, base + turn + 1)
                if len(piece):
                    first = room + me * part
                    piece[:] = segment.bytes[peer][first : first + len(piece)]

    def _largest(self, value: int) -> int:
        """Return the largest of all ranks' values."""
        import numpy as np

        largest = np.array([value], dtype=np.int64)
        self.allreduce([Buffer(largest, largest, DType.INT64)], ReduceOp.MAX)
        return int(largest[0])

    def barrier(self) -> None:
        self._segment.publish()
        self._segment.await_all(self._segment.published)

    # Lifetime.

    def split(self, ranks: Sequence[int]) -> ShmTransport | None:
        self._splits += 1
        if self.rank not in ranks:
            return None
        members = sorted(ranks)
        scope = f"{self._scope}/{self._splits}:{','.join(map(str, members))}"
        segment = self._segment
        index = members.index(self.rank)
        names = [segment.names[member] for member in members]
        return connect(
            index,
            len(members),
            self._secret,
            scope,
            patience=segment.patience,
            parent=segment,
            names=names,
        )

    def report_waits(self, report: Report) -> None:
        self._segment.report = report

    def report_parts(self, report: Parts | None) -> None:
        """Ignore the request: a single segment has no parts."""

    def abort(self, why: str) -> None:
        self._segment.abort(why)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._segment.close()


def _cut(array: Array, counts: Sequence[int]) -> list[Array]:
    ends = list(accumulate(counts))
    return [array[end - count : end] for count, end in zip(counts, ends, strict=True)]
