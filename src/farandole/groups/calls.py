"""Calls of a group, run one after the other: by whoever waits for one, else by a thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_HOLD = 0.02  # seconds after the last call that is held, before the thread runs them all the same


class Call:
    """``work`` is to be run in turn. Afterwards ``done`` is true and ``error`` says how it went.

    ``last``: what belongs to a call that went well, and has to happen before anybody takes it for done.
    """

    __slots__ = ("_event", "_hear", "done", "error", "last", "work")

    def __init__(self, work: Callable[[], None], last: Callable[[], None] | None = None) -> None:
        self.work, self.last = work, last
        self.done = False
        self.error: BaseException | None = None
        self._event: threading.Event | None = None
        self._hear: list[Callable[[], None]] = []

    def finish(self) -> None:
        """Once, by whoever ran it; then everybody who asked hears so."""
        if self.last is not None and self.error is None:
            try:
                self.last()
            except BaseException as error:
                self.error = error
        self.last = None  # as work: it may hold large tensors
        with _finishing:
            self.done = True
            event, heard = self._event, self._hear
            self._hear = []
        self.work = _nothing  # it may hold large tensors
        if event is not None:
            event.set()
        for hear in heard:
            hear()

    def when_done(self, hear: Callable[[], None]) -> None:
        """Have ``hear`` called when the call is done: now if it is, else by the thread that has run it."""
        with _finishing:
            if not self.done:
                self._hear.append(hear)
                return
        hear()

    def sleep(self, seconds: float | None = None) -> bool:
        """Until it is done. False if the time is over first."""
        with _finishing:
            if self.done:
                return True
            if self._event is None:
                self._event = threading.Event()
        return self._event.wait(seconds)


_finishing = threading.Lock()


def _nothing() -> None:
    pass


class Calls:
    """The calls of one group, in the order in which they were made."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: deque[Call] = deque()
        self._running = threading.Lock()
        self._news = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._closed = False
        self._held_until, self._holding, self._hurry = 0.0, False, threading.Event()

    def run(self, call: Call) -> None:
        """Run ``call``, after those before it. On this thread, unless another one is at it."""
        if not self._waiting and self._running.acquire(blocking=False):
            try:
                _run(call)
            finally:
                self._running.release()
            call.finish()
        else:
            self._waiting.append(call)
            self.wait(call)

    def start(self, call: Call, *, held: bool = False) -> None:
        """Have ``call`` run in its turn. ``held``: somebody is about to run all that wait; if not, the thread is."""
        self._waiting.append(call)
        self._held_until = time.monotonic() + _HOLD if held else 0.0
        if self._holding and not held:
            self._hurry.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._news.release()

    def run_all(self) -> None:
        """Run what waits, on this thread."""
        while self._run_next():
            pass

    def wait(self, call: Call) -> None:
        """Until ``call`` is done; what is to be run before it, and itself, runs on this thread if no other is at it."""
        while not call.done:
            if not self._run_next():
                call.sleep()

    @property
    def busy(self) -> bool:
        """Is there a call that has not ended?"""
        return bool(self._waiting) or self._running.locked()

    def close(self) -> None:
        """The thread ends when all calls have run."""
        self._closed = True
        self._hurry.set()
        self._news.release()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run_next(self) -> bool:
        with self._running:
            if not self._waiting:
                return False
            call = self._waiting.popleft()
            _run(call)
        call.finish()  # what hears of it may make calls itself
        return True

    def _hold(self) -> None:
        """Leave calls for a moment to somebody who is about to run them."""
        self._holding = True
        while self._waiting and not self._closed:
            self._hurry.clear()
            left = self._held_until - time.monotonic()
            if left <= 0:
                break
            self._hurry.wait(left)
        self._holding = False

    def _serve(self) -> None:
        while True:
            self._news.acquire()
            self._hold()
            self.run_all()  # also those before it, that were to be run by others
            if self._closed and not self._waiting:
                return


def _run(call: Call) -> None:
    try:
        call.work()
    except BaseException as error:
        call.error = error
