"""Sequence numbers for objects that users leave unnamed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

_TURN = 40  # each turn has 2**40 numbers


class Recorder(Protocol):
    """Records the places of the program's calls."""

    def add(self, number: int) -> None: ...
    def restart(self) -> None: ...


R = TypeVar("R", bound=Recorder)


class SequenceNumbers:
    """Numbers 1, 2, 3, ...: the same on all ranks that make the same calls in the same order.

    Each engine has its own numbers, which start from 1 again, on all ranks, after ``init()``.
    Thread-safe.
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
        """Return the next number for a call of the program itself, made by all ranks."""
        number = next(self._calls)
        if self._recorder is not None:
            self._recorder.add(number)
        return number

    def next_optimizer(self) -> int:
        """Return the next optimizer's number, the same on all ranks that create or first use their
        optimizers in the same order.

        A join does not change it: a rank that had no data before starts with the optimizer used by
        the other ranks.
        """
        return next(self._optimizers)

    def next_allocation(self) -> int:
        return next(self._allocations)

    def restart(self) -> None:
        """Continue with unused numbers when all ranks are at the same point after different numbers
        of calls.
        """
        with self._lock:
            self._turn += 1
            self._calls = itertools.count((self._turn << _TURN) + 1)
            if self._recorder is not None:
                self._recorder.restart()

    def recorded(self, make: Callable[[], R]) -> R:
        """Record calls with ``make()`` from now on, and return the recorder. An existing recorder
        is kept.
        """
        with self._lock:
            if self._recorder is None:
                self._recorder = make()
            return self._recorder  # type: ignore[return-value]  # there is only one recorder class
