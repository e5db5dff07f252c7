"""The copying path: reduce ordinary tensors through small slots that stay in the processor's cache.

The elements are dealt out in steps; in each step every rank owns one chunk. A rank copies the chunks that others own
into its slots (stage "given"), reduces the chunk that it owns from everybody's slots (stage "reduced"), and copies the
others' results out. Stages of successive steps overlap, with three sets of slots, so that ranks seldom wait for each
other, and a large tensor streams through memory once: read once, written once.
This is reduce-scatter followed by all-gather (Rabenseifner 2004; Patarasuk & Yuan 2009), chunk by chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from farandole.collectives.kernels import reduce_into
from farandole.transports.shm.arena import STAGING, Arena
from farandole.types import Buffer, DType, ReduceOp

if TYPE_CHECKING:
    from farandole.types import Array

Range = tuple[int, int]
SETS = 3
_PACK_BELOW = 16 << 10  # bytes: pieces smaller than this are gathered before they are reduced


class Slots:
    """The staging room of every rank, divided into slots of one chunk: ``given[set][giver][owner]`` and
    ``reduced[set][owner]``, as arrays of one storage type."""

    def __init__(self, arena: Arena, chunk: int, storage: str) -> None:
        size = arena.size

        def slot(rank: int, index: int) -> Array:
            start = STAGING + index * chunk
            typed: Array = arena.bytes[rank][start : start + chunk].view(storage)
            return typed

        per_set = size + 1
        self.given = [[[slot(r, s * per_set + o) for o in range(size)] for r in range(size)] for s in range(SETS)]
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

    def between(self, start: int, stop: int) -> Iterator[tuple[Array, int]]:
        """The parts of the arrays that cover [start, stop), each with its offset from ``start``."""
        index = bisect_right(self.starts, start) - 1
        offset = 0
        while start + offset < stop:
            array, first = self.arrays[index], self.starts[index]
            low = start + offset - first
            high = min(stop - first, len(array))
            if high > low:
                yield array[low:high], offset
                offset += high - low
            index += 1


class Reduction:
    """One reduction in the making. ``deal(step, owner)`` gives the range that ``owner`` reduces in ``step``."""

    def __init__(
        self, arena: Arena, slots: Slots, source: Pieces, target: Pieces, op: ReduceOp, dtype: DType, scale: float
    ) -> None:
        self.arena, self.slots, self.source, self.target = arena, slots, source, target
        self.op, self.dtype, self.scale = op, dtype, scale
        self.me = arena.rank
        self.small = _PACK_BELOW // dtype.itemsize

    def give(self, step: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Copy what others own into this rank's slots."""
        mine = self.slots.given[step % SETS][self.me]
        for owner in self.arena.others:
            start, stop = ranges[owner]
            slot = mine[owner]
            for piece, offset in self.source.between(start, stop):
                slot[offset : offset + len(piece)] = piece

    def reduce(self, step: int, start: int, stop: int) -> None:
        """Reduce the range that this rank owns into its result slot."""
        if stop <= start:
            return
        me, length = self.me, stop - start
        out = self.slots.reduced[step % SETS][me]
        given = [slots[me] for slots in self.slots.given[step % SETS]]
        pieces = list(self.source.between(start, stop))
        if len(pieces) == 1 or length > len(pieces) * self.small:
            for piece, offset in pieces:
                end = offset + len(piece)
                parts = [piece if rank == me else slot[offset:end] for rank, slot in enumerate(given)]
                reduce_into(out[offset:end], parts, self.op, self.dtype, self.scale)
        else:
            for piece, offset in pieces:
                given[me][offset : offset + len(piece)] = piece
            reduce_into(out[:length], [slot[:length] for slot in given], self.op, self.dtype, self.scale)

    def take(self, step: int, owner: int, start: int, stop: int, base: int = 0) -> None:
        """Copy the result of ``owner`` out; ``base`` is where the target begins."""
        if stop <= start:
            return
        result = self.slots.reduced[step % SETS][owner]
        for piece, offset in self.target.between(start - base, stop - base):
            piece[:] = result[offset : offset + len(piece)]


def allreduce(arena: Arena, slots: Slots, buffers: Sequence[Buffer], op: ReduceOp, scale: float) -> None:
    """All buffers, as one, on all ranks."""
    source = Pieces([buffer.data for buffer in buffers])
    target = Pieces([buffer.out for buffer in buffers])
    work = Reduction(arena, slots, source, target, op, buffers[0].dtype, scale)
    size, me, total, chunk = arena.size, arena.rank, source.total, slots.elements
    steps = -(-total // (size * chunk))

    def deal(step: int) -> list[tuple[int, int]]:
        first = step * size * chunk
        share = min(chunk, -(-(total - first) // size))
        return [(min(total, first + i * share), min(total, first + (i + 1) * share)) for i in range(size)]

    def finish(step: int, ranges: list[tuple[int, int]], stage: int) -> None:
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
    firsts = [sum(counts[:rank]) for rank in range(arena.size)]
    lasts = [first + count for first, count in zip(firsts, counts, strict=True)]
    steps = max(1, -(-max(counts) // chunk))

    def deal(step: int) -> list[tuple[int, int]]:
        return [
            (min(last, first + step * chunk), min(last, first + (step + 1) * chunk))
            for first, last in zip(firsts, lasts, strict=True)
        ]

    def finish(step: int, ranges: list[tuple[int, int]], stage: int) -> None:
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
    dealt = {0: deal(0)}

    def given_stage(step: int) -> int:  # the how-many-th announcement says that ``step`` was given
        return base + (1 if step == 0 else 2 * step)

    def reduced_stage(step: int) -> int:
        return base + (2 * steps if step == steps - 1 else 2 * step + 3)

    def give(step: int) -> None:
        if step < steps:
            dealt[step] = deal(step)
            work.give(step, dealt[step])
            arena.publish()

    give(0)
    for step in range(steps):
        give(step + 1)
        arena.await_all(given_stage(step))
        work.reduce(step, *dealt[step][me])
        arena.publish()
        if step:
            finish(step - 1, dealt.pop(step - 1), reduced_stage(step - 1))
    finish(steps - 1, dealt.pop(steps - 1), reduced_stage(steps - 1))
