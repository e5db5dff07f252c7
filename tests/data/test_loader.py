"""Loading ahead: order, errors, endings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from farandole.data import AsyncDataLoaderMixin, BaseDataLoader
from tests.kits.messages import mentioning


class Numbers(BaseDataLoader):
    """Batches 0, 1, 2, ... of epoch after epoch; ``made`` counts those that were loaded."""

    def __init__(self, length: int = 5, fail_at: int = -1) -> None:
        self.length, self.fail_at = length, fail_at
        self.epochs = 0
        self.made = 0
        self.closed = 0

    def __len__(self) -> int:
        return self.length

    def _iterate(self) -> Iterator[Any]:
        epoch, self.epochs = self.epochs, self.epochs + 1
        try:
            for number in range(self.length):
                if number == self.fail_at:
                    raise OSError("the disk is gone")
                self.made += 1
                yield epoch, number
        finally:
            self.closed += 1

    def _process_batch(self, batch: Any) -> Any:
        return (*batch, threading.current_thread().name)


class Ahead(AsyncDataLoaderMixin, Numbers):
    pass


def loaders() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "farandole-loader"]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert loaders() == []


@pytest.mark.parametrize(
    "make", [Numbers, Ahead, lambda: Ahead(0), lambda: Ahead(1), lambda: Ahead(64, True)]
)
def test_epoch_after_epoch(make: Callable[[], Any]) -> None:
    loader = make()
    me = threading.current_thread().name
    for epoch in range(3):
        assert list(loader) == [(epoch, number, me) for number in range(5)]
        assert len(loader) == 5
    assert loader.closed == 3


def test_batches_are_loaded_ahead_but_not_too_many() -> None:
    loader = Ahead(3, length=100)
    batches = iter(loader)
    next(batches)
    until(lambda: loader.made == 5)  # one is taken, three lie ready, one waits for room
    assert loaders() == ["farandole-loader"]
    assert len(list(batches)) == 99


def test_the_next_epoch_waits_until_it_is_asked_for() -> None:
    loader = Ahead()
    list(loader)
    assert (loader.epochs, loaders()) == (1, [])


@pytest.mark.parametrize("size", [0, 1, 64])
def test_an_error_comes_where_the_batch_would_have_come(size: int) -> None:
    loader = Ahead(size, fail_at=2)
    got: list[Any] = []
    with pytest.raises(OSError, match=mentioning("disk")) as caught:
        got.extend(loader)
    assert [number for _, number, _ in got] == [0, 1]
    assert "_iterate" in [entry.name for entry in caught.traceback]  # where it happened
    loader.fail_at = -1
    assert len(list(loader)) == 5


def test_giving_up_an_iteration_ends_its_thread() -> None:
    loader = Ahead(2, length=1000)
    for _, number, _ in loader:
        if number == 3:
            break
    until(lambda: not loaders())
    assert loader.made < 10
    assert loader.closed == 1
    assert next(iter(loader))[:2] == (1, 0)  # the next epoch begins at its beginning


def test_closing_ends_the_iteration_and_may_come_twice() -> None:
    loader = Ahead(2, length=1000)
    loader.close_async_loader()
    batches = iter(loader)
    next(batches)
    loader.close_async_loader()
    loader.close_async_loader()
    assert list(batches) == []
    assert loaders() == []
    assert len(list(loader)) == 1000


def test_closing_from_another_thread_wakes_the_consumer() -> None:
    blocked = threading.Event()

    class Slow(Ahead):
        def _iterate(self) -> Iterator[Any]:
            yield 0, 0
            blocked.wait(60)

    loader = Slow()
    got: list[Any] = []
    consumer = threading.Thread(target=lambda: got.extend(loader))
    consumer.start()
    until(lambda: len(got) <= 1 and bool(loader._running))
    closer = threading.Thread(target=loader.close_async_loader)
    closer.start()
    blocked.set()
    for thread in (closer, consumer):
        thread.join(60)
        assert not thread.is_alive()


def test_two_concurrent_iterations_do_not_mix() -> None:
    loader = Ahead(1)
    pairs = list(zip(loader, loader, strict=True))
    assert [(one[1], two[1]) for one, two in pairs] == [(number, number) for number in range(5)]
    assert {one[0] for one, _ in pairs} | {two[0] for _, two in pairs} == {0, 1}


def test_a_loader_without_batches_is_an_error() -> None:
    with pytest.raises(NotImplementedError):
        len(BaseDataLoader())
    with pytest.raises(NotImplementedError):
        list(BaseDataLoader())


def test_a_thread_ends_whose_start_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: threading.Thread) -> None:
        started.append(self)
        start(self)
        raise KeyboardInterrupt  # as from within start(), which waits for the thread to run

    start, started = threading.Thread.start, list[threading.Thread]()
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iter(Ahead(async_loader_queue_size=1)))
    started[0].join(60)
    assert not started[0].is_alive()
