"""Rows of blocks become rows of a rank: the threads that read them, and their memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from farandole.data.order import LanePiece, Order
from farandole.data.parquet.chunks import Chunks, PieceMemory, _Loaded, _Need, _Reading
from farandole.data.parquet.columns import Column
from farandole.errors import DataError

BLOCKS, ROWS = 6, 10
SECONDS = 20.0


def chunks(
    read: Callable[[int], dict[str, Any]],
    threads: int,
    lanes: int = 1,
    spare: list[PieceMemory] | None = None,
) -> Chunks:
    order = Order([ROWS] * BLOCKS, lanes, seed=0, epoch=0, shuffle=lanes > 1)

    def parts(block: int) -> Iterator[dict[str, Any]]:
        yield read(block)

    columns = [Column("id", "number", "int64", ())]
    return Chunks(
        order,
        order.strands(0, 0, 1),
        columns,
        read,
        parts,
        threads,
        4,
        [] if spare is None else spare,
    )


def block(number: int) -> dict[str, Any]:
    return {"id": np.arange(number * ROWS, (number + 1) * ROWS)}


def is_reader() -> bool:
    return threading.current_thread().name.startswith("farandole-reader")


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_consumer_reads_chunks_instead_of_waiting(lanes: int) -> None:
    helped = threading.Event()

    def read(number: int) -> dict[str, Any]:
        if is_reader():
            assert helped.wait(SECONDS), "the thread that takes rows does nothing"
        helped.set()
        return block(number)

    taken = chunks(read, threads=1, lanes=lanes)
    try:
        assert sorted(taken.take(BLOCKS * ROWS)["id"]) == list(range(BLOCKS * ROWS))
    finally:
        taken.close()


def test_unreadable_rows_are_reported_when_needed() -> None:
    helped = threading.Event()

    def read(number: int) -> dict[str, Any]:
        if number == 0:
            assert helped.wait(SECONDS)
            return block(number)
        helped.set()
        raise DataError(f"block {number}")

    taken = chunks(read, threads=1)
    try:
        assert taken.take(ROWS)["id"].tolist() == list(range(ROWS))
        with pytest.raises(DataError, match="block 1"):
            taken.take(1)
    finally:
        helped.set()
        taken.close()


class Preempted(Exception):
    pass


def test_a_signal_handlers_exception_interrupts_reading() -> None:
    helping = threading.Event()

    def read(number: int) -> dict[str, Any]:
        if is_reader():
            assert helping.wait(SECONDS)
            return block(number)
        raise Preempted

    taken = chunks(read, threads=1)
    try:
        with pytest.raises(Preempted):
            taken.take(ROWS)
    finally:
        helping.set()
        taken.close()


def test_a_handler_may_raise_when_the_piece_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Future[Any], found: Any) -> None:
        given(self, found)
        raise Preempted

    given = Future.set_result
    monkeypatch.setattr(Future, "set_result", interrupted)
    reading: Any = _Reading(
        _Need(0, 0, LanePiece(0, 0, 0, 1, 0)), lambda: _Loaded((), np.arange(1))
    )
    with pytest.raises(Preempted):
        reading.run()


def test_memory_that_a_thread_still_fills_is_not_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(self: threading.Thread) -> None:
        start(self)
        assert reads.wait(SECONDS)
        raise Preempted  # in start(), which waits for the thread: the pool does not know of it

    def read(number: int) -> dict[str, Any]:
        reads.set()
        assert closed.wait(SECONDS)
        return block(number)

    start, reads, closed, spare = (
        threading.Thread.start,
        threading.Event(),
        threading.Event(),
        list[PieceMemory](),
    )
    taken = chunks(read, threads=1, lanes=3, spare=spare)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(Preempted):
            taken.take(ROWS)
    taken.close()
    closed.set()
    assert not spare
    ended = chunks(block, threads=1, lanes=3, spare=spare)
    ended.take(ROWS)
    ended.close()
    assert spare


def test_functions_run_here_too_and_the_first_error_is_raised() -> None:
    taken, here = chunks(block, threads=1), threading.Event()

    def double(value: int) -> int:
        if is_reader():
            assert here.wait(SECONDS)
        here.set()
        return 2 * value

    def fails(value: int) -> int:
        if value in (3, 4, 7):
            raise ValueError(value)
        return value

    try:
        assert taken.map(double, range(50)) == [2 * value for value in range(50)]
        assert taken.map(double, []) == []
        for _ in range(50):
            with pytest.raises(ValueError, match="3"):
                taken.map(fails, range(10))
    finally:
        taken.close()


@pytest.mark.parametrize("writeable", [True, False])
@pytest.mark.parametrize("threads", [0, 2])
def test_rows_of_one_block_are_those_that_were_read(threads: int, writeable: bool) -> None:
    read: list[Any] = []

    def once(number: int) -> dict[str, Any]:
        memory = block(number)["id"]
        memory.flags.writeable = writeable  # where it is not, a file may be mapped
        read.append(memory[:])
        read[-1].flags.writeable = False
        return {"id": read[-1]}

    taken = chunks(once, threads)
    try:
        for size, inside in ((4, True), (8, False), (8, True)):
            assert (size <= (taken.in_one_part() or 0)) is inside
            rows = taken.take(size)["id"]
            assert any(np.shares_memory(rows, each) for each in read) is (inside and writeable)
            rows += 1  # whoever takes them may write there
    finally:
        taken.close()
