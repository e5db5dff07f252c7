"""Exceptions that a signal has raised are distinguished from others."""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from farandole.base.interrupts import interrupts


class Preempted(Exception):
    """An exception as Slurm programs raise it shortly before their time limit."""


def deeper() -> None:
    raise Preempted


def handler(number: int, frame: Any) -> None:
    deeper()


class Handlers:
    def method(self, number: int, frame: Any) -> None:
        raise Preempted

    def __call__(self, number: int, frame: Any) -> None:
        raise Preempted


def fails(*arrays: Any) -> None:
    raise ValueError(arrays)


class Inherits(Handlers):
    pass


def only_once(*given: Any) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise Preempted


@contextmanager
def handled_by(handler: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def caught(call: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as found:
        call()
    return found.value


@pytest.mark.parametrize(
    "each",
    [
        handler,
        lambda number, frame: deeper(),
        Handlers().method,
        Handlers(),
        functools.partial(handler),
        Inherits(),
        functools.partial(Handlers()),
        only_once,
    ],
    ids=[
        "function",
        "lambda",
        "method",
        "object",
        "partial",
        "inherits",
        "partial object",
        "gives its place away",
    ],
)
def test_exceptions_of_signal_handlers_are_interrupts(each: Any) -> None:
    with handled_by(each):
        assert interrupts(caught(lambda: signal.raise_signal(signal.SIGUSR1)))
        assert not interrupts(caught(deeper))
        assert not interrupts(caught(lambda: fails(np.zeros(3))))  # nothing is compared by value


def test_keyboardinterrupt_and_systemexit_are_interrupts() -> None:
    assert interrupts(KeyboardInterrupt())
    assert interrupts(SystemExit(3))


def test_other_threads_get_no_signal() -> None:
    found: list[bool] = []

    def body() -> None:
        found.append(interrupts(caught(lambda: handler(0, sys._getframe()))))

    body()
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert found == [True, False]


@pytest.mark.parametrize("each", [signal.SIG_IGN, signal.SIG_DFL, print])
def test_handlers_without_code(each: Any) -> None:
    with handled_by(each):
        assert not interrupts(caught(deeper))
