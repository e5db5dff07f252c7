"""Batches of the model's size, and the search for rows that fail."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.inference.isolate import BatchError, isolate
from farandole.inference.recut import recut


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(1, 12))
def test_each_row_is_in_one_batch_in_order(lengths: list[int], size: int) -> None:
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    chunks = [list(range(end - length, end)) for end, length in zip(ends, lengths, strict=True)]
    batches = list(recut(iter(chunks), len, size))
    rows = [
        row
        for batch in batches
        for each in batch.slices
        for row in each.chunk[each.begin : each.end]
    ]
    assert rows == list(range(sum(lengths)))
    assert [batch.rows for batch in batches[:-1]] == [size] * len(batches[:-1])
    assert [batch.row for batch in batches] == [size * number for number in range(len(batches))]
    assert all(each.begin < each.end for batch in batches for each in batch.slices)


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(1, 6))
def test_batches_that_lie_in_one_chunk_come_together(lengths: list[int], size: int) -> None:
    chunks = [[number] * length for number, length in enumerate(lengths)]
    batches = list(recut(iter(chunks), len, size, together=True))
    rows = [
        each.chunk[row]
        for batch in batches
        for each in batch.slices
        for row in range(each.begin, each.end)
    ]
    assert rows == [row for chunk in chunks for row in chunk]
    assert [batch.row for batch in batches] == [
        sum(each.rows for each in batches[:place]) for place in range(len(batches))
    ]
    assert all(batch.rows % size == 0 for batch in batches[:-1])
    assert all(len(batch.slices) == 1 for batch in batches if batch.rows > size)
    assert len(batches) <= 2 * len(lengths) + 1, (
        "of each chunk: the batch that it shares, and its own"
    )


def test_a_batch_is_returned_as_soon_as_its_rows_are_read() -> None:
    taken = []

    def chunks():  # type: ignore[no-untyped-def]
        for number in range(4):
            taken.append(number)
            yield [number] * 3

    batches = recut(chunks(), len, 4)
    next(batches)
    assert taken == [0, 1]


@given(st.integers(1, 40), st.sets(st.integers(0, 39)))
def test_failing_rows_are_found_and_the_others_have_their_values(rows: int, bad: set[int]) -> None:
    calls = []

    def call(begin: int, end: int) -> list[int]:
        calls.append(end - begin)
        if bad & set(range(begin, end)):
            raise ValueError(f"{begin} to {end}")
        return list(range(begin, end))

    found = list(isolate(call, 0, rows))
    assert [part.begin for part in found if part.error] == sorted(row for row in bad if row < rows)
    assert [row for part in found for row in part.found or [part.begin]] == list(range(rows))
    assert len(calls) == 1 or len(calls) <= 2 * len(bad) * (rows.bit_length() + 1)


def test_a_batch_that_fails_as_a_whole_has_no_failing_row() -> None:
    def call(begin: int, end: int) -> int:
        if end - begin > 3:
            raise MemoryError("too many")
        return end - begin

    assert [(part.found, part.error) for part in isolate(call, 0, 10)] == [
        (2, None),
        (3, None),
        (2, None),
        (3, None),
    ]


def test_an_error_of_the_model_ends_the_search() -> None:
    calls = []

    def call(begin: int, end: int) -> None:
        calls.append((begin, end))
        raise BatchError(TypeError("no such input"))

    with pytest.raises(BatchError):
        list(isolate(call, 0, 10))
    assert calls == [(0, 10)]


class Preempted(Exception):
    pass


def test_a_signal_handlers_exception_is_not_blamed_on_a_row() -> None:
    def handler(number: int, frame: Any) -> None:
        raise Preempted

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Preempted):
            list(isolate(lambda *_: signal.raise_signal(signal.SIGUSR1), 0, 2))
    finally:
        signal.signal(signal.SIGUSR1, before)
