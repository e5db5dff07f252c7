"""A second thread that works beside its owner, so that two wires of a rank can move data at
once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

_PATIENCE = 2.0  # seconds
Work = Callable[[], None]


class Lane:
    """Does pieces of work one after the other. ``start`` queues one, ``wait`` returns when the
    oldest is done. Both are called from one thread; the thread behind the lane begins with the
    first work.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._orders: SimpleQueue[Work | None] = SimpleQueue()
        self._outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._started = self._seen = 0
        self._skips = False  # something went wrong, and what was queued behind it is not done

    def start(self, work: Work) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._started += 1
        self._orders.put(work)

    def wait(self) -> None:
        """Return when the oldest work that was not waited for is done; raise what it raised."""
        error = self._outcomes.get()
        self._seen += 1
        if error is not None:
            raise error

    def finish(self) -> None:
        """Return when no work is left, however it ended, or did not begin."""
        self._skips = True
        while self._seen < self._started:
            self._outcomes.get()
            self._seen += 1
        self._skips = False

    def close(self) -> None:
        """Work under way ends by itself: its wire is closed."""
        if self._thread is not None:
            self._skips = True
            self._orders.put(None)
            self._thread.join(_PATIENCE)
            self._thread = None

    def _run(self) -> None:
        while (work := self._orders.get()) is not None:
            error: BaseException | None = None
            try:
                if not self._skips:
                    work()
            except BaseException as raised:
                error = raised
                self._skips = True
            self._outcomes.put(error)
            del work, error
