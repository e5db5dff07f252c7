"""A rank's rows, in the epoch's order, put together from the blocks of its lanes."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.data.order import Order, Piece, Strand
from farandole.data.parquet.columns import Column

if TYPE_CHECKING:
    from farandole.types import Array

Arrays = Mapping[str, "Array"]


class _Need(NamedTuple):
    """A piece, and the rank's row at which it is needed first."""

    place: int
    strand: int
    piece: Piece


class _Loaded(NamedTuple):
    arrays: Arrays
    rows: Array  # of the arrays, in the order in which the rank takes them


class Chunks:
    """``take(n)``: the next n rows of a rank.

    ``read(block)`` gives a block's columns. ``threads`` read ``ahead`` pieces before they are needed; 0: each is read
    when it is.
    """

    def __init__(
        self, order: Order, strands: Sequence[Strand], columns: Sequence[Column], read: Callable[[int], Arrays],
        threads: int, ahead: int,
    ) -> None:  # fmt: skip
        self._order, self._strands, self._columns, self._read = order, strands, columns, read
        self._needs = heapq.merge(*(_needs(order, number, strand) for number, strand in enumerate(strands)))
        self._pool = ThreadPoolExecutor(threads, "farandole-reader") if threads else None
        self._ahead: deque[tuple[_Need, Future[_Loaded]]] = deque()
        self._ahead_most = ahead
        self._waiting: _Need | None = None
        self._loaded: list[deque[_Loaded]] = [deque() for _ in strands]
        self._taken = [0 for _ in strands]  # rows of the first loaded piece
        self._next = [strand.place for strand in strands]
        self._place = 0

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        """``function`` of each value, in the threads."""
        if self._pool is None or len(values) < 2:
            return [function(value) for value in values]
        return list(self._pool.map(function, values, chunksize=1))

    def take(self, rows: int) -> dict[str, Array]:
        """New arrays with the next ``rows`` rows."""
        end = self._place + rows
        self._load(end)
        found = {
            column.name: np.empty(
                (rows, *(() if column.kind == "encoded" else column.shape)),
                object if column.kind == "encoded" else column.dtype,
            )
            for column in self._columns
        }
        for number, strand in enumerate(self._strands):
            while self._next[number] < end:
                self._copy(number, strand, found, end)
        self._place = end
        return found

    def _copy(self, number: int, strand: Strand, out: dict[str, Array], end: int) -> None:
        """Rows of the strand's first loaded piece: up to its end, or that of what is wanted."""
        piece, place, taken = self._loaded[number][0], self._next[number], self._taken[number]
        count = min(len(piece.rows) - taken, len(range(place, end, strand.period)))
        rows = piece.rows[taken : taken + count]
        begin = place - self._place
        for name, array in out.items():
            array[begin : begin + count * strand.period : strand.period] = piece.arrays[name].take(rows, axis=0)
        self._next[number] = place + count * strand.period
        self._taken[number] = taken + count
        if self._taken[number] == len(piece.rows):
            self._loaded[number].popleft()
            self._taken[number] = 0

    def _load(self, end: int) -> None:
        """Have every piece that is needed before the rank's row ``end``, and begin with those that come next."""
        while True:
            while len(self._ahead) < self._ahead_most and (need := self._upcoming()) is not None:
                assert self._pool is not None
                self._ahead.append((need, self._pool.submit(self._piece, need)))
                self._waiting = None
            if self._ahead:
                if self._ahead[0][0].place >= end:
                    return
                need, future = self._ahead.popleft()
                self._loaded[need.strand].append(future.result())
                continue
            upcoming = self._upcoming()
            if upcoming is None or upcoming.place >= end:
                return
            self._waiting = None
            self._loaded[upcoming.strand].append(self._piece(upcoming))

    def _upcoming(self) -> _Need | None:
        if self._waiting is None:
            self._waiting = next(self._needs, None)
        return self._waiting

    def _piece(self, need: _Need) -> _Loaded:
        strand, piece = self._strands[need.strand], need.piece
        step = strand.first + (need.place - strand.place) // strand.period * strand.stride
        return _Loaded(self._read(piece.block), self._order.rows_of(piece)[step - piece.step :: strand.stride])


def _needs(order: Order, number: int, strand: Strand) -> Iterator[_Need]:
    """The pieces of a strand that hold a row of the rank."""
    if strand.first >= order.lane_length(strand.lane):
        return
    for piece in order.pieces(strand.lane, strand.first):
        turn = max(0, -(-(piece.step - strand.first) // strand.stride))  # the strand's first row in the piece
        if strand.first + turn * strand.stride < piece.step + piece.end - piece.begin:
            yield _Need(strand.place + turn * strand.period, number, piece)
