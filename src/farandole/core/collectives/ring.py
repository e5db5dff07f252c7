"""Rings: every rank communicates with its two neighbours only, and moves the fewest bytes possible.

Allreduce is a reduce-scatter followed by an allgather, each of ``size - 1`` steps: Patarasuk and
Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009). The
allgather alone is the ring of Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", IJHPCA 19 (2005).

Pipelining: the elements are divided into groups, and every group into ``size`` segments of two
chunks. The messages of all groups form one sequence, in which message t + 1 never needs the content
of message t, so it is sent while message t is being received and reduced. This requires a link on
which a send may run ahead of its receive (``link.ahead``); on other links a rank sends and receives
message t at the same time. A link that can hold more bytes in flight gets more chunks: with n
chunks, message t + n - 1 does not need message t, so a link with a long latency is never idle.

Partial results are sent in the accumulator's type (float32 for half types), so they are rounded
only once, by the rank that finishes a segment; all other ranks receive its bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.base.types import DType, ReduceOp
from farandole.core import kernels
from farandole.core.collectives.flat import Flat, Scratch

if TYPE_CHECKING:
    from farandole.base.contracts import Link
    from farandole.base.types import Array

# bytes of a message: small enough for the caches, large enough to hide Python's overhead
CHUNK = 1 << 20
WHOLE = 1 << 17  # elements of a segment up to which it is sent as one message

Range = tuple[int, int]
ChunkGroup = list[list[Range]]  # [chunk][segment] -> elements


class RingStep(NamedTuple):
    """One message of the sequence: its chunk, its step, which determines the segments sent and
    received, and its phase.
    """

    group: ChunkGroup
    chunk: int
    step: int
    gather: bool


def even_groups(total: int, size: int, chunk: int, chunks: int) -> Iterator[ChunkGroup]:
    """Cut ``total`` elements into groups of ``size`` segments of ``chunks`` chunks, each of at most
    ``chunk`` elements.
    """
    count = max(1, -(-total // (chunks * size * chunk)))
    start = 0
    for length in kernels.shares(total, count):
        # smaller chunks do not pay for their messages
        used = min(chunks, max(1, -(-length // (size * min(WHOLE, chunk)))))
        shares, empty = kernels.shares(length, used * size), [0] * (chunks - used)
        parts = [
            part for seg in range(size) for part in (*shares[seg * used : (seg + 1) * used], *empty)
        ]
        cuts = list(pairwise(np.cumsum([start, *parts]).tolist()))
        yield [cuts[index::chunks] for index in range(chunks)]
        start += length


def ragged_groups(counts: Sequence[int], chunk: int, chunks: int) -> Iterator[ChunkGroup]:
    """Cut segments of ``counts`` elements into groups with up to ``chunks`` chunks of each
    segment.
    """
    starts = [sum(counts[:rank]) for rank in range(len(counts))]

    def cut(index: int) -> list[Range]:
        return [
            (start + min(index * chunk, count), start + min((index + 1) * chunk, count))
            for start, count in zip(starts, counts, strict=True)
        ]

    for index in range(0, -(-max(counts) // chunk), chunks):
        yield [cut(index + which) for which in range(chunks)]


def allreduce(
    link: Link, data: Flat, out: Flat, scratch: Scratch, dtype: DType, op: ReduceOp, scale: float
) -> None:
    """Reduce ``data`` into ``out`` (which may be the same memory) on all ranks."""
    width = kernels.accumulator(dtype, scale).itemsize
    groups = even_groups(data.size, link.size, max(1, CHUNK // width), chunks_of(link))
    _Ring(link, data, out, 0, scratch, dtype, op, scale).run(groups, gather=True)


def reducescatter(
    link: Link,
    data: Flat,
    out: Flat,
    counts: Sequence[int],
    scratch: Scratch,
    dtype: DType,
    op: ReduceOp,
    scale: float,
) -> None:
    """Reduce ``data`` and write the segment of this rank to ``out``."""
    width = kernels.accumulator(dtype, scale).itemsize
    groups = ragged_groups(counts, max(1, CHUNK // width), chunks_of(link))
    _Ring(link, data, out, sum(counts[: link.rank]), scratch, dtype, op, scale).run(
        groups, gather=False
    )


def chunks_of(link: Link) -> int:
    """Return the number of chunks of a segment: one more than the messages that can be in flight to
    a rank.
    """
    return 1 + max(1, link.ahead // CHUNK)


class _Ring:
    """One run. ``data`` and ``out`` may share memory: an element of ``out`` is written only after
    its value in ``data`` has been used.
    """

    def __init__(
        self,
        link: Link,
        data: Flat,
        out: Flat,
        base: int,
        scratch: Scratch,
        dtype: DType,
        op: ReduceOp,
        scale: float,
    ) -> None:
        self.link = link
        self.rank = link.rank
        self.size = link.size
        self.right = (link.rank + 1) % link.size
        self.left = (link.rank - 1) % link.size
        self.data = data
        self.out = out
        self.base = base
        self.dtype = dtype
        self.op = op
        self.scale = scale
        self.partial_type = kernels.accumulator(dtype, scale)
        self.chunks = chunks_of(link)
        # the elements to send next, by chunk
        self.partials: list[Array] = [np.empty(0, self.partial_type)] * self.chunks
        self.scratch = scratch

    def run(self, groups: Iterator[ChunkGroup], *, gather: bool) -> None:
        phases = (False, True) if gather else (False,)
        steps = (
            RingStep(group, chunk, step, phase)
            for group in groups
            for phase in phases
            for step in range(self.size - 1)
            for chunk in range(self.chunks)
        )
        if self.link.ahead >= CHUNK:
            self._run_ahead(steps)
        else:
            for step in steps:
                into = self._landing(step)
                self._sendrecv(self._outgoing(step), into)
                self._arrived(step, into)

    def _run_ahead(self, steps: Iterator[RingStep]) -> None:
        under_way = deque(islice(steps, self.chunks - 1))
        for step in under_way:
            self._sendrecv(self._outgoing(step), None)
        while under_way:
            following = next(steps, None)
            outgoing = None if following is None else self._outgoing(following)
            current = under_way.popleft()
            if following is not None:
                under_way.append(following)
            into = self._landing(current)
            self._sendrecv(outgoing, into)
            self._arrived(current, into)

    def _sendrecv(self, outgoing: Array | None, into: Array | None) -> None:
        self.link.sendrecv(
            None if outgoing is None else outgoing.view(np.uint8),
            self.right,
            None if into is None else into.view(np.uint8),
            self.left,
        )

    def _outgoing(self, step: RingStep) -> Array:
        lo, hi = self._sent(step)
        if step.gather:
            return self.out.read(lo - self.base, hi - self.base)
        if step.step == 0:  # the first step sends the unreduced elements
            return self.data.read(lo, hi)
        return self.partials[step.chunk]

    def _landing(self, step: RingStep) -> Array:
        """Return the memory that receives the bytes of ``step``."""
        lo, hi = self._received(step)
        if step.gather:
            view = self.out.view(lo - self.base, hi - self.base)
            return (
                self._scratch("gather", step.chunk, hi - lo, self.out.dtype)
                if view is None
                else view
            )
        kind = self.partial_type if step.step else self.data.dtype
        # the other piece contains the data being sent
        return self._scratch(step.step % 2, step.chunk, hi - lo, kind)

    def _arrived(self, step: RingStep, into: Array) -> None:
        lo, hi = self._received(step)
        if lo == hi:
            self.partials[step.chunk] = np.empty(0, self.partial_type)
        elif step.gather:
            if self.out.view(lo - self.base, hi - self.base) is None:
                self.out.write(lo - self.base, into)
        else:
            self._reduce(step, lo, hi, into)

    def _reduce(self, step: RingStep, lo: int, hi: int, into: Array) -> None:
        """Add this rank's elements to the received ones. After the last step the segment is
        complete and belongs to this rank.
        """
        mine = self.data.read(lo, hi)
        last = step.step == self.size - 2
        if last and self.size == 2:  # two ranks have no partial results
            total = self._result(lo, hi, step.chunk)
            kernels.reduce_into(total, [into, mine], self.op, self.dtype, self.scale)
        else:
            summand = kernels.opened(into, self.dtype, self.scale) if step.step == 0 else into
            mine = kernels.opened(mine, self.dtype, self.scale)
            if not last:
                # in place, because it is in the cache
                kernels.combine_into(summand, summand, mine, self.op)
                self.partials[step.chunk] = summand
                return
            total = self._result(lo, hi, step.chunk)
            if total.dtype == summand.dtype:
                kernels.combine_into(total, summand, mine, self.op)
                kernels.close_into(total, total, self.dtype, self.scale)
            else:
                kernels.combine_into(summand, summand, mine, self.op)
                kernels.close_into(total, summand, self.dtype, self.scale)
        if self.out.view(lo - self.base, hi - self.base) is None:
            self.out.write(lo - self.base, total)

    def _result(self, lo: int, hi: int, chunk: int) -> Array:
        view = self.out.view(lo - self.base, hi - self.base)
        return self._scratch("result", chunk, hi - lo, self.out.dtype) if view is None else view

    def _sent(self, step: RingStep) -> Range:
        first = self.rank if step.gather else self.rank - 1
        return step.group[step.chunk][(first - step.step) % self.size]

    def _received(self, step: RingStep) -> Range:
        first = self.rank if step.gather else self.rank - 1
        return step.group[step.chunk][(first - step.step - 1) % self.size]

    def _scratch(self, purpose: str | int, chunk: int, length: int, dtype: np.dtype[Any]) -> Array:
        return self.scratch.take((purpose, chunk), length, dtype)


def allgather(link: Link, parts: Sequence[Array]) -> None:
    """Gather every rank's part (uint8) on all ranks, around the ring. This rank's own part must be
    in place already.
    """
    size, right, left = link.size, (link.rank + 1) % link.size, (link.rank - 1) % link.size
    for step in range(size - 1):
        link.sendrecv(
            parts[(link.rank - step) % size], right, parts[(link.rank - step - 1) % size], left
        )
