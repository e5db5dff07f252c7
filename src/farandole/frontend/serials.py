"""Numbers for what users leave unnamed: counted per engine, so that they start anew, on all ranks, after ``init()``."""

from __future__ import annotations

import threading
from weakref import ref

from farandole.engine import Engine

_lock = threading.Lock()
_engine: ref[Engine] | None = None
_count = 0


def next_for(engine: Engine) -> int:
    """1, 2, 3, ...: the same on all ranks that make the same calls in the same order."""
    global _engine, _count
    with _lock:
        if _engine is None or _engine() is not engine:
            _engine, _count = ref(engine), 0
        _count += 1
        return _count
