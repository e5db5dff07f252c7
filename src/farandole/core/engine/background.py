"""The thread that drives rounds while no other thread does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from farandole.base import threads


class BackgroundThread:
    """The background thread. ``parked``: whether it sleeps until it is woken. ``cycle``: seconds
    for which it lets requests accumulate.
    """

    def __init__(self, cycle: float) -> None:
        self.cycle = cycle
        self.parked = True
        # unlike a semaphore, a queue remains consistent if a signal handler raises inside
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self.wake_up = self._wakeups.put
        self.sleep = self._wakeups.get
        self._thread: threading.Thread | None = None

    def start(self, body: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=body, name="farandole-engine", daemon=True)
        threads.start(self._thread)

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()
