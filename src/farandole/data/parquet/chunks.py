"""A rank's rows in the epoch's order, assembled from the blocks of its lanes."""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.data.order import LanePiece, Order, Strand
from farandole.data.parquet.columns import Column
from farandole.errors import DataError

if TYPE_CHECKING:
    from farandole.base.types import Array

Arrays = Mapping[str, "Array"]


class _Need(NamedTuple):
    """A piece, and the first of the rank's rows that needs it."""

    place: int
    strand: int
    piece: LanePiece


class _Loaded(NamedTuple):
    """A loaded piece: ``parts``, the rows of a block, or ``slot``, its slot in ``PieceMemory``."""

    parts: Sequence[Arrays]
    # rows of the concatenated parts, or of the memory, in the rank's order
    rows: Array
    slot: int = -1

    def part_of(self, row: int) -> tuple[Arrays, int, int]:
        """Return the part with this row, and its range of rows."""
        end = 0
        for part in self.parts:
            begin, end = end, end + _length(part)
            if row < end:
                break
        return part, begin, end


class _Part(NamedTuple):
    """``rows`` rows of one contiguous read, from row ``begin`` on."""

    arrays: Arrays
    begin: int
    rows: int

    def own(self, rows: int) -> dict[str, Array] | None:
        """Return the first rows as views of their memory; None if that memory is read-only."""
        arrays = {
            name: array[self.begin : self.begin + rows] for name, array in self.arrays.items()
        }
        try:
            for array in arrays.values():
                array.flags.writeable = True
        except ValueError:
            return None
        return arrays


class _Reading:
    """A piece that is read by the first thread to claim it."""

    def __init__(self, need: _Need, read: Callable[[], _Loaded]) -> None:
        self.need = need
        self.loaded: Future[_Loaded] = Future()
        self._read = read
        self._begun = threading.Lock()

    def run(self) -> None:
        """Read the piece, unless a thread has claimed it.

        A DataError is raised when the rows are needed; other exceptions (a signal handler may raise
        here) are also raised immediately.
        """
        if not self._begun.acquire(blocking=False):
            return
        try:
            self.loaded.set_result(self._read())
        except BaseException as error:
            if not self.loaded.done():  # a signal handler may raise after set_result
                self.loaded.set_exception(error)
            if not isinstance(error, DataError):
                raise

    def is_over(self) -> bool:
        """Return whether no thread is reading the piece or will read it."""
        return self._begun.acquire(blocking=False) or self.loaded.done()


class PieceMemory:
    """Reusable memory for ``count`` pieces of up to ``rows`` rows: one array for each column, so
    that a batch is gathered from all pieces at once.

    The operating system provides a page only when it is first written.
    """

    def __init__(self, columns: Sequence[Column], count: int, rows: int) -> None:
        self.arrays = {column.name: _empty(column, count * rows) for column in columns}
        self.size = (count, rows)
        self._rows = rows
        self._free: list[int] = []
        self.clear()

    @property
    def has_objects(self) -> bool:
        """Return whether rows are references to objects: text, or bytes to decode."""
        return any(array.dtype == object for array in self.arrays.values())

    def clear(self) -> None:
        """Mark all slots as free."""
        self._free = list(range(self.size[0]))

    def take(self) -> int:
        return self._free.pop()

    def give(self, slot: int) -> None:
        self._free.append(slot)

    def fill(self, slot: int, piece: LanePiece, parts: Iterator[Arrays], rows: Array) -> Array:
        """Copy ``rows`` of a piece from the parts of its block, in that order; return their indices
        in the memory.

        The rows are ordered here, while the piece is in the cache of this thread's core: a gather
        across slots then reads each slot sequentially.
        """
        first, place = slot * self._rows, 0
        for part in parts:
            count = _length(part)
            begin, end = max(piece.begin, place), min(piece.end, place + count)
            if begin == piece.begin and end == piece.end:  # all rows of the part
                for name, array in part.items():
                    _take(array, rows - place, self.arrays[name][first : first + len(rows)])
            elif begin < end:
                for name, array in part.items():
                    to = first + begin - piece.begin
                    self.arrays[name][to : to + end - begin] = array[begin - place : end - place]
                if end == piece.end:
                    for array in self.arrays.values():
                        array[first : first + len(rows)] = array[first:].take(
                            rows - piece.begin, axis=0
                        )
            place += count
        return np.arange(first, first + len(rows))


class Chunks:
    """Assembles a rank's rows: ``take(n)`` returns the next n.

    ``read(block)`` returns a block's columns, and ``parts(block)`` yields the columns of its parts
    in turn. ``threads`` background threads prefetch ``ahead`` pieces. The consumer also reads when
    it would otherwise wait, because more threads than cores cost more than they contribute. With 0
    threads each piece is read on demand. ``spare``: memory of a finished epoch, reused because
    allocating it again takes a tenth of a short epoch. ``kept``: whether the reader caches the
    blocks, so that rows must be copied.
    """

    def __init__(
        self,
        order: Order,
        strands: Sequence[Strand],
        columns: Sequence[Column],
        read: Callable[[int], Arrays],
        parts: Callable[[int], Iterator[Arrays]],
        threads: int,
        ahead: int,
        spare: list[PieceMemory],
        *,
        kept: bool = False,
    ) -> None:
        self._order = order
        self._strands = strands
        self._columns = columns
        self._read = read
        self._parts = parts
        self._needs = heapq.merge(
            *(_needs(order, number, strand) for number, strand in enumerate(strands))
        )
        self._pool = ThreadPoolExecutor(threads, "farandole-reader") if threads else None
        self._threads = threads
        self._kept = kept
        self._ahead: deque[_Reading] = deque()
        self._ahead_most = ahead if threads else 0
        self._waiting: _Need | None = None
        self._slots: PieceMemory | None = None
        if len(strands) > 1:
            self._slots = _piece_memory(
                columns, len(strands) + self._ahead_most, order.longest, spare
            )
        self._spare = spare
        self._loaded: list[_Loaded | None] = [None for _ in strands]
        self._taken = [0 for _ in strands]  # rows taken from the loaded piece
        self._next = [strand.place for strand in strands]
        self._place = 0

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        # The pool does not wait for a thread whose start was interrupted by a signal handler.
        over = all(reading.is_over() for reading in self._ahead)
        if over and self._slots is not None and not self._spare and not self._slots.has_objects:
            self._spare.append(self._slots)

    def map(self, function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        """Call ``function`` for each value, on the background threads and this one. Raises the
        error of the first failing value.
        """
        results: list[Any] = [None] * len(values)
        errors: dict[int, Exception] = {}
        indices = iter(range(len(values)))  # each index goes to one thread

        def work() -> None:
            while not errors and (index := next(indices, None)) is not None:
                try:
                    results[index] = function(values[index])
                except Exception as error:
                    errors[index] = error

        helpers = min(self._threads, len(values) - 1)
        others = [self._pool.submit(work) for _ in range(helpers)] if self._pool is not None else []
        work()
        for other in others:
            if not other.cancel():
                other.result()
        if errors:
            raise errors[min(errors)]
        return results

    def in_one_part(self) -> int | None:
        """Return how many rows can be taken next without a copy; None if all rows are copied."""
        part = self._part()
        return None if part is None else part.rows

    def take(self, rows: int) -> dict[str, Array]:
        """Return the next ``rows`` rows, in arrays owned by the caller."""
        part = self._part()
        if part is not None and 0 < rows <= part.rows and (own := part.own(rows)):
            self._rows(0, self._place + rows)
            self._place += rows
            return own
        begin, end = self._place, self._place + rows
        arrays = {column.name: _empty(column, rows) for column in self._columns}
        while self._place < end:
            until = min(end, self._load())
            self._gather(
                {
                    name: array[self._place - begin : until - begin]
                    for name, array in arrays.items()
                },
                until,
            )
            self._place = until
        return arrays

    def _part(self) -> _Part | None:
        """Return the memory of the next rows, if it may be handed out and they are contiguous."""
        if self._kept or self._order.shuffled or self._strands[0].stride > 1:
            return None
        until, piece = self._load(), self._loaded[0]
        if piece is None:  # this rank has no rows
            return None
        row = int(piece.rows[self._taken[0]])
        arrays, begin, end = piece.part_of(row)
        return _Part(arrays, row - begin, min(until - self._place, end - row))

    def _gather(self, out: Arrays, end: int) -> None:
        """Copy the rows up to the rank's row ``end`` from loaded pieces."""
        if not self._order.shuffled:
            self._copy(self._rows(0, end), out)
            return
        rows = np.empty(end - self._place, np.intp)
        for number, strand in enumerate(self._strands):
            begin = self._next[number] - self._place
            if self._next[number] < end:
                rows[begin :: strand.period] = self._rows(number, end)
        for name, array in out.items():
            _take(self._memory()[name], rows, array)

    def _memory(self) -> Arrays:
        """Return the memory of shuffled rows."""
        if self._slots is not None:
            return self._slots.arrays
        piece = self._loaded[0]
        assert piece is not None
        return piece.parts[0]

    def _copy(self, rows: Array, out: Arrays) -> None:
        """Copy rows of a piece, in file order."""
        piece, done = self._loaded[0], 0
        assert piece is not None
        while done < len(rows):
            part, begin, end = piece.part_of(int(rows[done]))
            until = int(np.searchsorted(rows, end))
            taken = slice(rows[done] - begin, rows[until - 1] - begin + 1, self._strands[0].stride)
            for name, array in out.items():
                array[done:until] = part[name][taken]
            done = until

    def _rows(self, number: int, end: int) -> Array:
        """Return the next rows of a strand's piece, up to the rank's row ``end``."""
        piece, taken, period = (
            self._loaded[number],
            self._taken[number],
            self._strands[number].period,
        )
        assert piece is not None
        count = len(range(self._next[number], end, period))
        self._next[number] += count * period
        self._taken[number] += count
        return piece.rows[taken : taken + count]

    def _load(self) -> int:
        """Load every piece that the rank's next row needs, and start to read later ones.

        Returns the row at which another piece is needed.
        """
        while True:
            while len(self._ahead) < self._ahead_most and (need := self._upcoming()) is not None:
                assert self._pool is not None
                reading = _Reading(need, partial(self._piece, need, self._slot()))
                self._ahead.append(reading)
                self._pool.submit(reading.run)
                self._waiting = None
            upcoming = self._ahead[0].need if self._ahead else self._upcoming()
            if upcoming is None or upcoming.place > self._place:
                return self._order.rows if upcoming is None else upcoming.place
            self._release(upcoming.strand)
            if self._ahead:
                self._help(self._ahead[0].loaded)
                loaded = self._ahead.popleft().loaded.result()
            else:
                self._waiting = None
                loaded = self._piece(upcoming, self._slot())
            self._loaded[upcoming.strand], self._taken[upcoming.strand] = loaded, 0

    def _help(self, wanted: Future[_Loaded]) -> None:
        """Read pieces that no thread has claimed, until the ``wanted`` one is loaded."""
        for reading in self._ahead:
            if wanted.done():
                return
            reading.run()

    def _release(self, number: int) -> None:
        """Release the strand's finished piece."""
        piece, self._loaded[number] = self._loaded[number], None
        if piece is not None and self._slots is not None:
            self._slots.give(piece.slot)

    def _slot(self) -> int:
        return -1 if self._slots is None else self._slots.take()

    def _upcoming(self) -> _Need | None:
        if self._waiting is None:
            self._waiting = next(self._needs, None)
        return self._waiting

    def _piece(self, need: _Need, slot: int) -> _Loaded:
        strand, piece = self._strands[need.strand], need.piece
        step = strand.first + (need.place - strand.place) // strand.period * strand.stride
        rows = self._order.rows_of(piece)[step - piece.step :: strand.stride]
        if self._slots is not None:
            return _Loaded((), self._slots.fill(slot, piece, self._parts(piece.block), rows), slot)
        if self._order.shuffled or self._kept:
            return _Loaded((self._read(piece.block),), rows)
        return _Loaded(tuple(self._parts(piece.block)), rows)


def _piece_memory(
    columns: Sequence[Column], count: int, rows: int, spare: list[PieceMemory]
) -> PieceMemory:
    with contextlib.suppress(IndexError):
        memory = spare.pop()
        if memory.size == (count, rows):
            memory.clear()
            return memory
    return PieceMemory(columns, count, rows)


def _take(array: Array, rows: Array, out: Array) -> None:
    """Copy rows with valid indices. numpy's other modes make an intermediate copy."""
    array.take(rows, axis=0, out=out, mode="clip")


def _length(part: Arrays) -> int:
    return len(next(iter(part.values())))


def _empty(column: Column, rows: int) -> Array:
    """Allocate memory for a column. A column to be decoded later is an array of bytes objects."""
    if column.kind == "encoded":
        return np.empty(rows, object)
    return np.empty((rows, *column.shape), column.dtype)


def _needs(order: Order, number: int, strand: Strand) -> Iterator[_Need]:
    """Yield the pieces of a strand that hold a row of the rank."""
    if strand.first >= order.lane_length(strand.lane):
        return
    for piece in order.pieces(strand.lane, strand.first):
        # the strand's first row in the piece
        turn = max(0, -(-(piece.step - strand.first) // strand.stride))
        if strand.first + turn * strand.stride < piece.step + piece.end - piece.begin:
            yield _Need(strand.place + turn * strand.period, number, piece)
