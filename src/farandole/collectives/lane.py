"""A second thread for one piece of work at a time, so that two wires of a rank can move data at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

_PATIENCE = 2.0  # seconds
Work = Callable[[], None]


class Lane:
    """``start`` and ``wait`` in turn, from one thread. The thread behind it begins with the first work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._orders: SimpleQueue[Work | None] = SimpleQueue()
        self._outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = False

    def start(self, work: Work) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._busy = True
        self._orders.put(work)

    def wait(self) -> None:
        """Return when the work is done; raise what it raised."""
        error = self._outcomes.get()
        self._busy = False
        if error is not None:
            raise error

    def finish(self) -> None:
        """Return when no work is under way, however it ends."""
        if self._busy:
            self._outcomes.get()
            self._busy = False

    def close(self) -> None:
        """What is still under way ends by itself: its wire is closed."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(_PATIENCE)
            self._thread = None

    def _run(self) -> None:
        while (work := self._orders.get()) is not None:
            try:
                work()
            except BaseException as error:
                self._outcomes.put(error)
            else:
                self._outcomes.put(None)
            del work
