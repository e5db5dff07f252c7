"""Batches of the model's size, cut from chunks of any size. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Slice(NamedTuple, Generic[T]):
    """Rows ``begin`` to ``end - 1`` of a chunk."""

    chunk: T
    begin: int
    end: int


class ModelBatch(NamedTuple, Generic[T]):
    """A batch for the model. ``row``: the number of its first row in the stream. ``slices``: the
    locations of its rows, in order.

    With ``together``, ``rows`` may be several times the model's size; the rows are then in one
    chunk.
    """

    row: int
    rows: int
    slices: tuple[Slice[T], ...]


def recut(
    chunks: Iterator[T], length: Callable[[T], int], size: int, together: bool = False
) -> Iterator[ModelBatch[T]]:
    """Yield all rows of ``chunks`` in order, as batches of ``size`` rows; the last one may be
    shorter.

    A batch is yielded as soon as its rows are available: chunks are not prefetched. Chunks may be
    empty. ``together``: yield the batches within a chunk as one, so that fixed costs occur once per
    chunk.
    """
    waiting: deque[Slice[T]] = deque()
    row = there = 0
    for chunk in chunks:
        waiting.append(Slice(chunk, 0, length(chunk)))
        there += length(chunk)
        while there >= size:
            rows = there - there % size if together and len(waiting) == 1 else size
            yield ModelBatch(row, rows, take(waiting, rows))
            row, there = row + rows, there - rows
    if there:
        yield ModelBatch(row, there, take(waiting, there))


def take(waiting: deque[Slice[T]], rows: int) -> tuple[Slice[T], ...]:
    """Remove the first ``rows`` rows from the queue, and return them."""
    taken = []
    while rows:
        first = waiting.popleft()
        count = min(rows, first.end - first.begin)
        if count < first.end - first.begin:
            waiting.appendleft(first._replace(begin=first.begin + count))
        if count:
            taken.append(first._replace(end=first.begin + count))
        rows -= count
    return tuple(taken)
