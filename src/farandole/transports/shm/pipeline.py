"""The copying path: reduce ordinary tensors through small slots that stay in the processor's cache.

The elements are dealt out in steps; in each step every rank owns one chunk. A rank copies the chunks that others own
into its slots (stage "given"), reduces the chunk that it owns from everybody's slots (stage "reduced"), and copies the
others' results out. Stages of successive steps overlap, with three sets of slots, so that ranks seldom wait for each
other, and a large tensor streams through memory once: read once, written once.
This is reduce-scatter followed by all-gather (Rabenseifner 2004; Patarasuk & Yuan 2009), chunk by chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from numpy import multiply

from farandole.collectives.kernels import reducer
from farandole.transports.shm import memory
from farandole.transports.shm.arena import STAGING, Arena
from farandole.types import Buffer, DType, ReduceOp

if TYPE_CHECKING:
    from farandole.types import Array

Range = tuple[int, int]
SETS = 3
_PACK_BELOW = 16 << 10  # bytes: pieces smaller than this are gathered before they are reduced


class Slots:
    """The staging room of every rank, divided into slots of one chunk: ``given[set][giver][owner]`` and
    ``reduced[set][owner]``, as arrays of one storage type;
    ``taken[set][owner][giver]`` is the same, seen from the owner."""

    def __init__(self, arena: Arena, chunk: int, storage: str) -> None:
        size = arena.size

        def slot(rank: int, index: int) -> Array:
            start = STAGING + index * chunk
            typed: Array = arena.bytes[rank][start : start + chunk].view(storage)
            return typed

        per_set = size + 1
        self.given = [[[slot(r, s * per_set + o) for o in range(size)] for r in range(size)] for s in range(SETS)]
        self.taken = [[[self.given[s][r][o] for r in range(size)] for o in range(size)] for s in range(SETS)]
        self.reduced = [[slot(r, s * per_set + size) for r in range(size)] for s in range(SETS)]
        self.elements = len(self.reduced[0][0])


def staging(size: int, chunk: int) -> int:
    """Bytes of staging room that each of ``size`` ranks needs."""
    return SETS * (size + 1) * chunk


class Pieces:
    """Several arrays seen as one long one."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = arrays
        self.starts = [0]
        for array in arrays:
            self.starts.append(self.starts[-1] + len(array))
        self.total = self.starts[-1]

    def between(self, start: int, stop: int) -> Sequence[tuple[Array, int]]:
        """The parts of the arrays that cover [start, stop), each with its offset from ``start``."""
        if len(self.arrays) == 1:
            return ((self.arrays[0][start:stop], 0),) if stop > start else ()
        index = bisect_right(self.starts, start) - 1
        parts, at = [], start
        while at < stop:
            array, first = self.arrays[index], self.starts[index]
            end = min(stop, first + len(array))
            if end > at:
                parts.append((array[at - first : end - first], at - start))
                at = end
            index += 1
        return parts


class Reduction:
    """One reduction in the making, for ranges of elements that fit into a slot."""

    def __init__(
        self, arena: Arena, slots: Slots, source: Pieces, target: Pieces, op: ReduceOp, dtype: DType, scale: float
    ) -> None:
        self.slots, self.source, self.target = slots, source, target
        self.me, self.others = arena.rank, arena.others
        self.small = _PACK_BELOW // dtype.itemsize
        # Plain floats are scaled while they are copied out, which costs nothing; the others where they are summed.
        late = dtype.is_float and not dtype.is_half
        self.reducer = reducer(op, dtype, 1.0 if late else scale)
        self.scale = scale if late else 1.0

    def give(self, step: int, ranges: Sequence[Range]) -> None:
        """Copy what others own into this rank's slots."""
        mine = self.slots.given[step % SETS][self.me]
        for owner in self.others:
            slot = mine[owner]
            for piece, offset in self.source.between(*ranges[owner]):
                slot[offset : offset + len(piece)] = piece

    def reduce(self, step: int, start: int, stop: int) -> None:
        """Reduce the range that this rank owns into its result slot."""
        me, length = self.me, stop - start
        out = self.slots.reduced[step % SETS][me]
        given = self.slots.taken[step % SETS][me]
        pieces = self.source.between(start, stop)
        if length > len(pieces) * self.small:
            for piece, offset in pieces:
                end = offset + len(piece)
                parts = [slot[offset:end] for slot in given]
                parts[me] = piece
                self.reducer(out[offset:end], parts)
        elif length > 0:
            for piece, offset in pieces:
                given[me][offset : offset + len(piece)] = piece
            self.reducer(out[:length], [slot[:length] for slot in given])

    def take(self, step: int, owner: int, start: int, stop: int, base: int = 0) -> None:
        """Copy the result of ``owner`` out; ``base`` is where the target begins."""
        result, scale = self.slots.reduced[step % SETS][owner], self.scale
        for piece, offset in self.target.between(start - base, stop - base):
            if scale == 1.0:
                piece[:] = result[offset : offset + len(piece)]
            else:
                multiply(result[offset : offset + len(piece)], scale, piece)


def allreduce(arena: Arena, slots: Slots, buffers: Sequence[Buffer], op: ReduceOp, scale: float) -> None:
    """All buffers, as one, on all ranks."""
    source = Pieces([buffer.data for buffer in buffers])
    target = Pieces([buffer.out for buffer in buffers])
    work = Reduction(arena, slots, source, target, op, buffers[0].dtype, scale)
    size, me, total, chunk = arena.size, arena.rank, source.total, slots.elements
    # As few steps as fit, all of one length: a short last step would cost as many waits as a long one.
    steps = -(-total // (size * chunk))
    share = min(chunk, memory.round_up(-(-total // (size * steps)), 64))

    def deal(step: int) -> list[Range]:
        marks = [min(total, (step * size + owner) * share) for owner in range(size + 1)]
        return list(pairwise(marks))

    def finish(step: int, ranges: list[Range], stage: int) -> None:
        work.take(step, me, *ranges[me])
        for owner in arena.others:
            arena.await_one(owner, stage)
            work.take(step, owner, *ranges[owner])

    _run(arena, work, steps, deal, finish)


def reducescatter(
    arena: Arena, slots: Slots, buffer: Buffer, counts: Sequence[int], op: ReduceOp, scale: float
) -> None:
    """Each rank's part of the reduced buffer. Counts are elements per rank."""
    work = Reduction(arena, slots, Pieces([buffer.data]), Pieces([buffer.out]), op, buffer.dtype, scale)
    me, chunk = arena.rank, slots.elements
    lasts = list(accumulate(counts))
    firsts = [last - count for last, count in zip(lasts, counts, strict=True)]
    steps = max(1, -(-max(counts) // chunk))

    def deal(step: int) -> list[Range]:
        return [
            (min(last, first + step * chunk), min(last, first + (step + 1) * chunk))
            for first, last in zip(firsts, lasts, strict=True)
        ]

    def finish(step: int, ranges: list[Range], stage: int) -> None:
        work.take(step, me, *ranges[me], base=firsts[me])
        arena.await_all(stage)

    _run(arena, work, steps, deal, finish)


def _run(
    arena: Arena,
    work: Reduction,
    steps: int,
    deal: Callable[[int], list[Range]],
    finish: Callable[[int, list[Range], int], None],
) -> None:
    """Given 0, given 1, reduced 0, given 2, reduced 1, finished 0, given 3, reduced 2, finished 1, ...

    A set of slots is used again three steps later: by then its step is finished on this rank, hence reduced on all.
    """
    base, me = arena.published, arena.rank
    dealt = [deal(0)]  # of the steps under way
    work.give(0, dealt[0])
    arena.publish()
    given = base + 1  # the announcement by which a rank has given the current step
    for step in range(steps):
        if step + 1 < steps:
            dealt.append(deal(step + 1))
            work.give(step + 1, dealt[-1])
            arena.publish()
        arena.await_all(given)
        work.reduce(step, *dealt[1 if step else 0][me])
        arena.publish()
        if step:
            finish(step - 1, dealt.pop(0), given + 1)
        given = base + 2 * step + 2
    finish(steps - 1, dealt.pop(0), base + 2 * steps)
