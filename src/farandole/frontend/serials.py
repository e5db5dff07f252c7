"""Numbers for what users leave unnamed: counted per engine, so that they start anew, on all ranks, after ``init()``."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from weakref import WeakKeyDictionary, ref

from farandole.engine import Engine
from farandole.frontend.calls import Calls

_lock = threading.Lock()
_numbers: WeakKeyDictionary[Engine, Iterator[int]] = WeakKeyDictionary()
_optimizers: WeakKeyDictionary[Engine, Iterator[int]] = WeakKeyDictionary()
_turns: WeakKeyDictionary[Engine, int] = WeakKeyDictionary()
_calls: WeakKeyDictionary[Engine, Calls] = WeakKeyDictionary()  # of engines whose ranks are compared
_TURN = 40  # a turn has 2**40 numbers
_last: tuple[ref[Engine] | None, Iterator[int], Calls | None] = None, iter(()), None  # most calls are about one engine


def restart(engine: Engine) -> None:
    """All ranks are at the same place again, after different numbers of calls: go on with numbers not used yet."""
    global _last
    with _lock:
        turn = _turns.get(engine, 0) + 1
        _turns[engine] = turn
        _numbers[engine] = itertools.count((turn << _TURN) + 1)
        _last = None, iter(()), None
        if engine in _calls:
            _calls[engine].restart()


def watch(engine: Engine) -> Calls:
    """Keep from now on where the program makes its calls."""
    global _last
    with _lock:
        _last = None, iter(()), None
        return _calls.setdefault(engine, Calls())


def next_for(engine: Engine) -> int:
    """1, 2, 3, ...: the same on all ranks that make the same calls in the same order."""
    known, numbers, _ = _last
    if known is None or known() is not engine:
        numbers, _ = _found(engine)
    return next(numbers)


def next_optimizer(engine: Engine) -> int:
    """1, 2, 3, ...: the same on all ranks whose optimizers begin in the same order. A join does not change it: a rank
    that had no data before begins with the optimizer that others have used."""
    with _lock:
        return next(_optimizers.setdefault(engine, itertools.count(1)))


def next_call(engine: Engine) -> int:
    """``next_for`` what the program calls, and ranks contribute to alike."""
    known, numbers, calls = _last
    if known is None or known() is not engine:
        numbers, calls = _found(engine)
    number = next(numbers)
    if calls is not None:
        calls.add(number)
    return number


def _found(engine: Engine) -> tuple[Iterator[int], Calls | None]:
    global _last
    with _lock:
        numbers = _numbers.setdefault(engine, itertools.count(1))
        calls = _calls.get(engine)
        _last = ref(engine), numbers, calls
    return numbers, calls
