"""A thread that waits for the collectives of graphs.

The engine runs a collective immediately if a thread waits for it, and otherwise after a delay.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

_waits: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def drive(wait: Callable[[], None]) -> None:
    """Queue ``wait``, which must not raise, to be called after the functions queued before it."""
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
