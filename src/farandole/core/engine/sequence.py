"""Sequence numbers for what users leave unnamed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

_TURN = 40  # a turn has 2**40 numbers


class Recorder(Protocol):
    """Keeps where the program makes its calls."""

    def add(self, number: int) -> None: ...
    def restart(self) -> None: ...


R = TypeVar("R", bound=Recorder)


class SequenceNumbers:
    """1, 2, 3 ...: the same on all ranks that make the same calls in the same order. One for each
    engine, so they start from 1 again, on all ranks, after ``init()``. Any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = itertools.count(1)
        self._optimizers = itertools.count(1)
        self._allocations = itertools.count(1)
        self._turn = 0
        self._recorder: Recorder | None = None

    def next(self) -> int:
        return next(self._calls)

    def next_call(self) -> int:
        """``next``, for what the program itself calls, and ranks contribute to alike."""
        number = next(self._calls)
        if self._recorder is not None:
            self._recorder.add(number)
        return number

    def next_optimizer(self) -> int:
        """The same on all ranks that make, or begin with, their optimizers in the same order. A
        join does not change it: a rank that had no data before begins with the optimizer that
        others have used.
        """
        return next(self._optimizers)

    def next_allocation(self) -> int:
        return next(self._allocations)

    def restart(self) -> None:
        """All ranks are at the same place again, after different numbers of calls: go on with
        numbers not used yet.
        """
        with self._lock:
            self._turn += 1
            self._calls = itertools.count((self._turn << _TURN) + 1)
            if self._recorder is not None:
                self._recorder.restart()

    def recorded(self, make: Callable[[], R]) -> R:
        """Have ``make()`` record calls from now on; return the present recorder if there is one."""
        with self._lock:
            if self._recorder is None:
                self._recorder = make()
            return self._recorder  # type: ignore[return-value]  # there is one kind of them
