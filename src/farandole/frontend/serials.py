"""Numbers for what users leave unnamed: counted per engine, so that they start anew, on all ranks, after ``init()``."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from weakref import WeakKeyDictionary, ref

from farandole.engine import Engine

_lock = threading.Lock()
_numbers: WeakKeyDictionary[Engine, Iterator[int]] = WeakKeyDictionary()
_turns: WeakKeyDictionary[Engine, int] = WeakKeyDictionary()
_TURN = 40  # a turn has 2**40 numbers
_last: tuple[ref[Engine] | None, Iterator[int]] = None, iter(())  # most calls are about the same engine


def restart(engine: Engine) -> None:
    """All ranks are at the same place again, after different numbers of calls: go on with numbers not used yet."""
    global _last
    with _lock:
        turn = _turns.get(engine, 0) + 1
        _turns[engine] = turn
        _numbers[engine] = itertools.count((turn << _TURN) + 1)
        _last = None, iter(())


def next_for(engine: Engine) -> int:
    """1, 2, 3, ...: the same on all ranks that make the same calls in the same order."""
    global _last
    known, numbers = _last
    if known is None or known() is not engine:
        with _lock:
            numbers = _numbers.setdefault(engine, itertools.count(1))
        _last = ref(engine), numbers
    return next(numbers)
