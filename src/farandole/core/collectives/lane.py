"""A second thread next to its owner, so that a rank can move data on two wires concurrently."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

_PATIENCE = 2.0  # seconds
Work = Callable[[], None]


class Lane:
    """Runs pieces of work in sequence on its own thread, which starts with the first piece.

    ``start`` queues a piece, ``wait`` returns when the oldest one is done. Both must be called from
    the same thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._orders: SimpleQueue[Work | None] = SimpleQueue()
        self._outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._started = self._seen = 0
        self._skips = False  # skip queued work after an error

    def start(self, work: Work) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._started += 1
        self._orders.put(work)

    def wait(self) -> None:
        """Wait until the oldest pending work is done. Raises its exception."""
        error = self._outcomes.get()
        self._seen += 1
        if error is not None:
            raise error

    def finish(self) -> None:
        """Wait until no work is left, ignoring exceptions. Work that has not started is skipped."""
        self._skips = True
        while self._seen < self._started:
            self._outcomes.get()
            self._seen += 1
        self._skips = False

    def close(self) -> None:
        """Stop the thread. Running work ends on its own once its wire is closed."""
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
