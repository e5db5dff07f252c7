"""The copying path: reduces ordinary tensors through small slots that stay in the processor's
cache.

The elements are divided into steps; in each step every rank owns one chunk. A rank copies the
chunks of other owners into its slots (stage "given"), reduces its own chunk from all ranks' slots
(stage "reduced"), and copies the other results out. With three sets of slots, stages of successive
steps overlap, so ranks seldom wait for each other, and a large tensor is read and written only
once. This is reduce-scatter followed by all-gather (Rabenseifner 2004; Patarasuk & Yuan 2009),
chunk by chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from numpy import may_share_memory, multiply

from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core.kernels import reducer
from farandole.core.transports.shm import memory
from farandole.core.transports.shm.segment import STAGING, Segment

if TYPE_CHECKING:
    from farandole.base.types import Array

Range = tuple[int, int]
Piece = tuple["Array", int, int]  # array, start and end in its range
Cuts = Sequence[Sequence[Sequence[Piece]]]  # by step and owner
SETS = 3
_PACK_BELOW = 16 << 10  # bytes: smaller pieces are packed together before the reduction


class StagingSlots:
    """The staging memory of all ranks, divided into slots of one chunk, as arrays of one storage
    type.

    For each set of slots: ``given``, this rank's slots by owner; ``taken``, the other ranks' slots
    with pieces for this rank; ``reduced``, the results by owner.
    """

    def __init__(self, segment: Segment, chunk: int, storage: str) -> None:
        size, me = segment.size, segment.rank

        def slot(rank: int, index: int) -> Array:
            start = STAGING + index * chunk
            typed: Array = segment.bytes[rank][start : start + chunk].view(storage)
            return typed

        firsts, ranks = range(0, SETS * (size + 1), size + 1), range(size)
        self.given = [[slot(me, first + owner) for owner in ranks] for first in firsts]
        self.taken = [[slot(giver, first + me) for giver in ranks] for first in firsts]
        self.reduced = [[slot(owner, first + size) for owner in ranks] for first in firsts]
        self.elements = chunk // self.given[0][0].itemsize


def staging(size: int, chunk: int) -> int:
    """Return the bytes of staging memory that each of ``size`` ranks needs."""
    return SETS * (size + 1) * chunk


def cut(arrays: Sequence[Array], ranges: Sequence[Sequence[Range]]) -> Cuts:
    """Cut several arrays, treated as one long array, into the pieces in each range."""
    starts = [0, *accumulate(map(len, arrays))]

    def parts(start: int, stop: int) -> list[Piece]:
        found, at, index = [], start, bisect_right(starts, start) - 1
        while at < stop:
            array, first, last = arrays[index], starts[index], starts[index + 1]
            end = min(stop, last)
            if end > at:
                whole = at == first and end == last
                found.append(
                    (array if whole else array[at - first : end - first], at - start, end - start)
                )
                at = end
            index += 1
        return found

    return [[parts(*bounds) for bounds in step] for step in ranges]


def deal(total: int, size: int, chunk: int) -> list[list[Range]]:
    """Divide ``total`` elements into steps. In each step every rank owns adjacent elements.

    The number of steps is minimal, and all have the same length: a short last step would cost as
    many waits as a long one.
    """
    steps = -(-total // (size * chunk))
    share = min(chunk, memory.round_up(-(-total // (size * steps)), 64))
    marks = [min(total, mark * share) for mark in range(steps * size + 1)]
    return [
        list(pairwise(marks[first : first + size + 1])) for first in range(0, steps * size, size)
    ]


class PipelinedReduction:
    """One reduction. ``source`` and ``target``: by step and owner. ``direct``: this rank has one
    piece in each step, which does not overlap any source, and is reduced directly into its target.
    """

    def __init__(
        self,
        segment: Segment,
        slots: StagingSlots,
        source: Cuts,
        target: Cuts,
        op: ReduceOp,
        dtype: DType,
        scale: float,
        *,
        direct: bool = False,
    ) -> None:
        self.segment = segment
        self.slots = slots
        self.source = source
        self.target = target
        self.small = _PACK_BELOW // dtype.itemsize
        # Plain floats are scaled for free while they are copied out; other types during the sum.
        late = dtype.is_float and not dtype.is_half and not direct
        self.reducer = reducer(op, dtype, 1.0 if late else scale)
        self.scale = scale if late else 1.0
        self.direct = direct

    def run(self) -> None:
        """Run the stages in this order: given 0, given 1, reduced 0, given 2, reduced 1, taken 0,
        given 3, reduced 2, taken 1, ...

        A rank copies out its own chunk immediately, from its cache. A set of slots is reused three
        steps later: by then this rank has copied out its step, so all ranks have reduced it.
        """
        segment, steps = self.segment, len(self.source)
        before = segment.published
        self._give(0)
        given = before + 1  # the stage at which a rank has given the current step
        for step in range(steps):
            if step + 1 < steps:
                self._give(step + 1)
            segment.await_all(given)
            self._reduce(step)
            if step:
                self._take_others(step - 1, given + 1)
            given = before + 2 * step + 2
        self._take_others(steps - 1, before + 2 * steps)

    def _give(self, step: int) -> None:
        """Copy the pieces of other owners into this rank's slots."""
        slots, source = self.slots.given[step % SETS], self.source[step]
        for owner in self.segment.others:
            slot = slots[owner]
            for piece, start, end in source[owner]:
                slot[start:end] = piece
        self.segment.publish()

    def _reduce(self, step: int) -> None:
        """Reduce this rank's own pieces into its result slot."""
        me, given = self.segment.rank, self.slots.taken[step % SETS]
        out, pieces = self.slots.reduced[step % SETS][me], self.source[step][me]
        length = pieces[-1][2] if pieces else 0
        if self.direct and length:
            out = self.target[step][me][0][0]
        if length > len(pieces) * self.small:
            for piece, start, end in pieces:
                parts = [slot[start:end] for slot in given]
                parts[me] = piece
                self.reducer(out[start:end], parts)
        elif length:
            for piece, start, end in pieces:
                given[me][start:end] = piece
            self.reducer(out[:length], [slot[:length] for slot in given])
        self.segment.publish()
        if not self.direct:
            self._take(step, me)

    def _take_others(self, step: int, stage: int) -> None:
        for owner in self.segment.others:
            self.segment.await_one(owner, stage)
            self._take(step, owner)

    def _take(self, step: int, owner: int) -> None:
        """Copy the result of ``owner`` out."""
        result, scale = self.slots.reduced[step % SETS][owner], self.scale
        for piece, start, end in self.target[step][owner]:
            if scale == 1.0:
                piece[:] = result[start:end]
            else:
                multiply(result[start:end], scale, piece)


def allreduce(
    segment: Segment, slots: StagingSlots, buffers: Sequence[Buffer], op: ReduceOp, scale: float
) -> None:
    """Reduce all buffers, as one array, on all ranks."""
    ranges = deal(sum(len(buffer.data) for buffer in buffers), segment.size, slots.elements)
    source = cut([buffer.data for buffer in buffers], ranges)
    in_place = all(buffer.out is buffer.data for buffer in buffers)
    target = source if in_place else cut([buffer.out for buffer in buffers], ranges)
    PipelinedReduction(segment, slots, source, target, op, buffers[0].dtype, scale).run()


def reducescatter(
    segment: Segment,
    slots: StagingSlots,
    buffer: Buffer,
    counts: Sequence[int],
    op: ReduceOp,
    scale: float,
) -> None:
    """Write each rank's part of the reduced buffer on that rank. Counts are elements per rank."""
    chunk, me = slots.elements, segment.rank
    marks = list(pairwise([0, *accumulate(counts)]))
    firsts = range(0, max(1, *counts), chunk)
    ranges = [
        [(min(last, at + first), min(last, at + first + chunk)) for at, last in marks]
        for first in firsts
    ]
    mine = [
        [(start - marks[me][0], stop - marks[me][0])]
        for start, stop in (step[me] for step in ranges)
    ]
    target = [
        [kept if owner == me else [] for owner in range(segment.size)]
        for (kept,) in cut([buffer.out], mine)
    ]
    direct = not may_share_memory(buffer.data, buffer.out)
    PipelinedReduction(
        segment, slots, cut([buffer.data], ranges), target, op, buffer.dtype, scale, direct=direct
    ).run()
