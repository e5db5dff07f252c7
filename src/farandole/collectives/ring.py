"""Rings: every rank talks to its two neighbours only, and moves as few bytes as can be.

Allreduce is a reduce-scatter followed by an allgather, each of ``size - 1`` steps: Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009). The allgather alone is the ring of
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005).

Pipelining: the elements are cut into groups, every group into ``size`` segments of two chunks. All messages of all
groups make one sequence, in which message t + 1 never needs the content of message t; so it is sent while message t is
still being received and reduced. That takes a link on which a send may run ahead of its receive (``link.ahead``);
on others send and receive go in step.

Partial results travel in the accumulator's type (float32 for half types), so that there is one rounding, by the rank
that finishes a segment; everybody else gets his bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.collectives import kernels
from farandole.collectives.flat import Flat, Scratch
from farandole.types import DType, ReduceOp

if TYPE_CHECKING:
    from farandole.contracts import Link
    from farandole.types import Array

CHUNK = 1 << 20  # bytes of a message: small enough for the caches, large enough to hide Python's part
WHOLE = 1 << 17  # elements of a segment that are sent as one message

Range = tuple[int, int]
Group = list[list[Range]]  # [chunk][segment] -> elements


class Step(NamedTuple):
    """One message of the sequence: which of the two chunks, which segments go out and come in, in which phase."""

    group: Group
    chunk: int
    step: int
    gather: bool


def even_groups(total: int, size: int, chunk: int) -> Iterator[Group]:
    """``total`` elements cut into groups of ``size`` segments of two chunks, of at most ``chunk`` elements each."""
    count = max(1, -(-total // (2 * size * chunk)))
    start = 0
    for length in kernels.shares(total, count):
        if length <= size * min(WHOLE, chunk):  # not worth a second message: the second chunks are empty
            parts = [part for share in kernels.shares(length, size) for part in (share, 0)]
        else:
            parts = kernels.shares(length, 2 * size)
        cuts = np.cumsum([start, *parts]).tolist()
        yield [[(cuts[2 * seg + half], cuts[2 * seg + half + 1]) for seg in range(size)] for half in (0, 1)]
        start += length


def ragged_groups(counts: Sequence[int], chunk: int) -> Iterator[Group]:
    """Segments of ``counts`` elements, every group taking up to two chunks from each of them."""
    starts = [sum(counts[:rank]) for rank in range(len(counts))]

    def cut(index: int) -> list[Range]:
        return [
            (start + min(index * chunk, count), start + min((index + 1) * chunk, count))
            for start, count in zip(starts, counts, strict=True)
        ]

    for index in range(0, -(-max(counts) // chunk), 2):
        yield [cut(index), cut(index + 1)]


def allreduce(link: Link, data: Flat, out: Flat, scratch: Scratch, dtype: DType, op: ReduceOp, scale: float) -> None:
    """Reduce ``data`` into ``out`` (which may be the same memory) on all ranks."""
    width = kernels.accumulator(dtype, scale).itemsize
    groups = even_groups(data.size, link.size, max(1, CHUNK // width))
    _Ring(link, data, out, 0, scratch, dtype, op, scale).run(groups, gather=True)


def reducescatter(
    link: Link, data: Flat, out: Flat, counts: Sequence[int], scratch: Scratch, dtype: DType, op: ReduceOp, scale: float
) -> None:
    """Reduce ``data`` and write the segment of this rank to ``out``."""
    width = kernels.accumulator(dtype, scale).itemsize
    groups = ragged_groups(counts, max(1, CHUNK // width))
    _Ring(link, data, out, sum(counts[: link.rank]), scratch, dtype, op, scale).run(groups, gather=False)


class _Ring:
    """One run. ``data`` and ``out`` may share memory: an element of ``out`` is written only when its value in
    ``data`` has been used."""

    def __init__(
        self, link: Link, data: Flat, out: Flat, base: int, scratch: Scratch, dtype: DType, op: ReduceOp, scale: float
    ) -> None:
        self.link, self.rank, self.size = link, link.rank, link.size
        self.right, self.left = (link.rank + 1) % link.size, (link.rank - 1) % link.size
        self.data, self.out, self.base = data, out, base
        self.dtype, self.op, self.scale = dtype, op, scale
        self.partial_type = kernels.accumulator(dtype, scale)
        self.partials: list[Array] = [np.empty(0, self.partial_type)] * 2  # per chunk: the elements to send next
        self.scratch = scratch

    def run(self, groups: Iterator[Group], *, gather: bool) -> None:
        phases = (False, True) if gather else (False,)
        steps = (
            Step(group, chunk, step, phase)
            for group in groups for phase in phases for step in range(self.size - 1) for chunk in (0, 1)
        )  # fmt: skip
        if self.link.ahead >= CHUNK:
            self._run_ahead(steps)
        else:
            for step in steps:
                into = self._landing(step)
                self._sendrecv(self._outgoing(step), into)
                self._arrived(step, into)

    def _run_ahead(self, steps: Iterator[Step]) -> None:
        current = next(steps, None)
        if current is None:
            return
        self._sendrecv(self._outgoing(current), None)
        while current is not None:
            following = next(steps, None)
            outgoing = None if following is None else self._outgoing(following)
            into = self._landing(current)
            self._sendrecv(outgoing, into)
            self._arrived(current, into)
            current = following

    def _sendrecv(self, outgoing: Array | None, into: Array | None) -> None:
        self.link.sendrecv(
            None if outgoing is None else outgoing.view(np.uint8), self.right,
            None if into is None else into.view(np.uint8), self.left,
        )  # fmt: skip

    def _outgoing(self, step: Step) -> Array:
        lo, hi = self._sent(step)
        if step.gather:
            return self.out.read(lo - self.base, hi - self.base)
        if step.step == 0:  # nothing added yet: the elements as they are
            return self.data.read(lo, hi)
        return self.partials[step.chunk]

    def _landing(self, step: Step) -> Array:
        """The memory that receives the bytes of ``step``."""
        lo, hi = self._received(step)
        if step.gather:
            view = self.out.view(lo - self.base, hi - self.base)
            return self._scratch("gather", step.chunk, hi - lo, self.out.dtype) if view is None else view
        raw = step.step == 0
        kind = self.data.dtype if raw else self.partial_type
        return self._scratch("raw" if raw else "partial", step.chunk, hi - lo, kind)

    def _arrived(self, step: Step, into: Array) -> None:
        lo, hi = self._received(step)
        if lo == hi:
            self.partials[step.chunk] = np.empty(0, self.partial_type)
        elif step.gather:
            if self.out.view(lo - self.base, hi - self.base) is None:
                self.out.write(lo - self.base, into)
        else:
            self._reduce(step, lo, hi, into)

    def _reduce(self, step: Step, lo: int, hi: int, into: Array) -> None:
        """Add our elements to those received; at the last step the segment is finished, and ours."""
        mine = self.data.read(lo, hi)
        last = step.step == self.size - 2
        if last and self.size == 2:  # two ranks have no partial results
            total = self._result(lo, hi, step.chunk)
            kernels.reduce_into(total, [into, mine], self.op, self.dtype, self.scale)
        else:
            came = kernels.opened(into, self.dtype, self.scale) if step.step == 0 else into
            mine = kernels.opened(mine, self.dtype, self.scale)
            if not last:
                total = self._scratch("sum", step.chunk, hi - lo, self.partial_type)
                kernels.combine_into(total, came, mine, self.op)
                self.partials[step.chunk] = total
                return
            total = self._result(lo, hi, step.chunk)
            if total.dtype == came.dtype:
                kernels.combine_into(total, came, mine, self.op)
                kernels.close_into(total, total, self.dtype, self.scale)
            else:
                kernels.combine_into(came, came, mine, self.op)
                kernels.close_into(total, came, self.dtype, self.scale)
        if self.out.view(lo - self.base, hi - self.base) is None:
            self.out.write(lo - self.base, total)

    def _result(self, lo: int, hi: int, chunk: int) -> Array:
        view = self.out.view(lo - self.base, hi - self.base)
        return self._scratch("result", chunk, hi - lo, self.out.dtype) if view is None else view

    def _sent(self, step: Step) -> Range:
        return step.group[step.chunk][(self.rank - step.step - (not step.gather)) % self.size]

    def _received(self, step: Step) -> Range:
        return step.group[step.chunk][(self.rank - step.step - 1 - (not step.gather)) % self.size]

    def _scratch(self, purpose: str, chunk: int, length: int, dtype: np.dtype[Any]) -> Array:
        return self.scratch.take((purpose, chunk), length, dtype)


def allgather(link: Link, parts: Sequence[Array]) -> None:
    """Every rank's part (uint8; our own is in place already) on all ranks, passed on around the ring."""
    size, right, left = link.size, (link.rank + 1) % link.size, (link.rank - 1) % link.size
    for step in range(size - 1):
        link.sendrecv(parts[(link.rank - step) % size], right, parts[(link.rank - step - 1) % size], left)
