"""A thread of ours that waits for what graphs start: the engine works at once for whoever waits,
and only after a while for those that do not.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

_waits: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def drive(wait: Callable[[], None]) -> None:
    """Have ``wait()`` called, which raises nothing, after those that came before it."""
    global _thread
    if _thread is None or not _thread.is_alive():
        with _lock:
            if _thread is None or not _thread.is_alive():
                _thread = threading.Thread(target=_run, name="farandole-tensorflow", daemon=True)
                _thread.start()
    _waits.put(wait)


def _run() -> None:
    while True:
        _waits.get()()
