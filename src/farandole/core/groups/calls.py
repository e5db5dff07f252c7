"""Calls of a group, run in sequence: on a thread that waits for a call, else on a worker thread.

Callbacks of a call run after it, in the order of the calls and one at a time, so that calls made by
callbacks are in the same order on all ranks. A callback may make a call and wait for it. Such
nested calls have a depth, and each depth has its own queue of callbacks.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable

from farandole.base.interrupts import interrupts
from farandole.base.log import logger
from farandole.core.groups.thread_waits import in_calls, signs, waiting_for
from farandole.errors import WAITS_FOR_ITSELF, RequestError

# seconds to wait for the thread that holds the calls; then the worker thread checks it again
_HOLD = 0.02
_PATROL = 1.0  # seconds for which the worker thread polls after calls were left to a holder


class Call:
    """One queued call, which runs ``work``.

    Afterwards ``done`` is true, and ``error`` is the exception raised by ``work``, or None.
    ``last`` runs after a successful call, before the call counts as done.
    """

    __slots__ = ("_callbacks", "_event", "depth", "done", "error", "last", "work")

    def __init__(self, work: Callable[[], None], last: Callable[[], None] | None = None) -> None:
        self.work = work
        self.last = last
        self.done = False
        # nesting: the number of callbacks around the call
        self.depth = getattr(_here, "depth", 0)
        self.error: BaseException | None = None
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[], None]] = []

    def finish(self) -> None:
        """Mark the call as done, once, and run its callbacks."""
        for callback in self.end():
            callback()

    def end(self) -> list[Callable[[], None]]:
        """Mark the call as done, once, and return its callbacks, which the caller must run."""
        if self.last is not None and self.error is None:
            try:
                self.last()
            except BaseException as error:
                self.error = error
        self.last = None  # may hold large tensors, like ``work``
        with _finishing:
            self.done = True
            event, callbacks = self._event, self._callbacks
            self._callbacks = []
        self.work = _nothing  # may hold large tensors
        if event is not None:
            event.set()
        return callbacks

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the call is done: immediately if it is, else on the thread that
        runs the call.
        """
        with _finishing:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def sleep(self, seconds: float | None = None) -> bool:
        """Sleep until the call is done. Return False if ``seconds`` elapse first."""
        with _finishing:
            if self.done:
                return True
            if self._event is None:
                self._event = threading.Event()
        thread = threading.get_ident()
        try:
            waiting_for[thread] = self
            return self._event.wait(seconds)
        finally:
            waiting_for.pop(thread, None)


_finishing = threading.Lock()
_here = threading.local()  # depth: the number of callbacks running on this thread


def _nothing() -> None:
    pass


class _Callbacks:
    """The callbacks of one depth, in the order of their calls."""

    def __init__(self, depth: int) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self._depth = depth
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run all waiting callbacks, unless another thread is running them.

        The first exception of a callback is raised again after the last callback.
        """
        raised: BaseException | None = None
        before = getattr(_here, "depth", 0)
        while self.waiting and self._lock.acquire(blocking=False):
            _here.depth = self._depth + 1
            try:
                while self.waiting:
                    self.waiting.popleft()()
            except BaseException as error:
                raised = raised or error
            finally:
                _here.depth = before
                self._lock.release()
        if raised is not None:
            raise raised


class CallQueue:
    """The calls of one group, in the order of the program.

    ``behind``: seconds for which the holder of the calls may block in another call, waiting for
    late ranks, before the worker thread runs the held calls itself.
    """

    def __init__(self, name: str, *, behind: float = 0.0) -> None:
        self._name = name
        self._behind = behind
        self._waiting: deque[Call] = deque()
        self._running = threading.Lock()
        self._runner = 0  # ident of the thread that runs a call; 0: none
        self._callbacks: list[_Callbacks] = [_Callbacks(0)]
        self._news = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._closed = False
        self._holder = 0
        self._holding = False
        self._hurry = threading.Event()
        self._held = -_PATROL  # the time at which calls were last left to a holder
        self._patrols = False  # whether the worker thread is polling
        key = id(self)
        _queues[key] = weakref.ref(self, lambda _: _queues.pop(key, None))

    def run(self, call: Call) -> None:
        """Run ``call`` after all earlier ones: on this thread, unless another thread is running
        calls.
        """
        if self._runner:
            self._check()
        if not self._waiting and self._running.acquire(blocking=False):
            try:
                self._runner = threading.get_ident()
                _run(call)
                self._end(call)
            finally:
                self._runner = 0
                self._running.release()
            self._callbacks[call.depth].run()
        else:
            self._waiting.append(call)
            self.wait(call)

    def start(self, call: Call, *, held_by: int = 0) -> None:
        """Queue ``call`` to run in its turn.

        ``held_by``: the native id of a thread that will soon run all waiting calls. If it sleeps
        instead, it may be waiting for these calls; then the worker thread runs them. Waking the
        worker in each backward pass took 0.4 ms of a core, so it polls for a while instead.
        """
        # the holder may itself be waiting for this call
        holder = self._holder = 0 if call.depth else held_by
        self._waiting.append(call)
        if holder:
            self._held = time.monotonic()
        elif self._holding:
            self._hurry.set()
        if len(self._threads) <= call.depth:
            self._serve_up_to(call.depth)
        if not (holder and self._patrols):
            self._news.release()

    def hurry(self) -> None:
        """Take the waiting calls from their holder, because a caller polls or waits for one of the
        calls.
        """
        if self._holder:
            self._holder = 0
            self._hurry.set()
            self._news.release()  # the worker may be between two polls

    def run_all(self) -> None:
        """Run all waiting calls on this thread. An exception from a signal handler ends the call
        and is raised here.
        """
        while self._run_next():
            pass

    def wait(self, call: Call) -> None:
        """Wait until ``call`` is done, running earlier calls and ``call`` itself on this thread if
        no other thread runs them.
        """
        while not call.done:
            self._check()
            if not self._run_next(call):
                call.sleep()

    def _check(self) -> None:
        """Raise RequestError if this thread is inside a call and would wait for itself."""
        if self._runner == threading.get_ident():
            raise RequestError(WAITS_FOR_ITSELF)

    @property
    def busy(self) -> bool:
        """Return whether a call is waiting or running."""
        return bool(self._waiting) or self._running.locked()

    def close(self) -> None:
        """Close the queue. The worker threads end once all calls have run."""
        self._closed = True
        self._hurry.set()
        with self._starting:
            threads = list(self._threads)
        for _ in threads:
            self._news.release()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _run_next(self, last: Call | None = None) -> bool:
        """Run the next call. Return False if there is none or ``last`` is done; later calls are
        left to other threads.
        """
        thread = threading.get_ident()
        if thread in in_calls:
            return self._run_first(last)
        try:
            in_calls.add(thread)
            return self._run_first(last)
        finally:
            in_calls.discard(thread)

    def _run_first(self, last: Call | None) -> bool:
        with self._running:
            if not self._waiting or (last is not None and last.done):
                return False
            call = self._waiting.popleft()
            self._runner = threading.get_ident()
            _run(call)
            self._runner = 0
            self._end(call)
        self._callbacks[call.depth].run()  # without the lock: callbacks may make calls
        if call.error is not None and interrupts(call.error):
            # an exception from a signal handler belongs to this thread, not to the caller
            raise call.error
        return True

    def _end(self, call: Call) -> None:
        """Finish ``call`` and queue its callbacks. Requires ``_running``; the caller then runs
        ``_Callbacks.run``.
        """
        callbacks = call.end()
        while len(self._callbacks) <= call.depth:
            self._callbacks.append(_Callbacks(len(self._callbacks)))
        self._callbacks[call.depth].waiting.extend(callbacks)

    def _serve_up_to(self, depth: int) -> None:
        """Start worker threads up to ``depth``: one for each nested callback that may wait for the
        call, and one to run the call.
        """
        with self._starting:
            while len(self._threads) <= depth:
                thread = threading.Thread(
                    target=self._serve, args=(not self._threads,), name=self._name, daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _hold(self) -> Call | None:
        """Leave the calls to their holder while that thread is working, without a time limit.

        Starting the calls after a fixed time would order their callbacks differently on each rank.
        Return the last call that the worker must run now; None if there is none.
        """
        self._holding = True
        since: dict[Hashable, float] = {}
        while (last := self._last()) is not None and not self._closed:
            self._hurry.clear()
            holder = self._holder
            if not holder:
                break
            found, now = signs(holder, self._behind, runs_call), time.monotonic()
            if any(
                sign in since and now - since[sign] >= seconds for sign, seconds in found.items()
            ):
                break
            since = {sign: since.get(sign, now) for sign in found}
            self._hurry.wait(_HOLD)
        self._holding = False
        return last

    def _last(self) -> Call | None:
        with contextlib.suppress(IndexError):  # other threads may empty the queue
            return self._waiting[-1]
        return None

    def _serve(self, first: bool) -> None:
        while True:
            self._await_news(first)
            last = self._hold()
            if last is not None:
                self._run_quietly(last)  # includes earlier calls held by other threads
            if self._closed and not self._waiting:
                return

    def _await_news(self, first: bool) -> None:
        """Wait for work. The first thread polls while calls are being left to holders."""
        if first:
            self._patrols = True
            found = self._patrol()
            self._patrols = False
            # the caller that queued it signals no news during a patrol
            if found or (self._waiting and self._holder):
                return
        self._news.acquire()

    def _patrol(self) -> bool:
        """Poll for news or a waiting call. Return whether there is one."""
        while time.monotonic() - self._held < _PATROL:
            if self._news.acquire(timeout=_HOLD) or self._waiting:
                return True
        return False

    def _run_quietly(self, last: Call) -> None:
        """Run the calls up to ``last``, and log exceptions of callbacks. Later calls may be held
        again; each brings its own news.
        """
        while True:
            try:
                while self._run_next(last):
                    pass
            # the call keeps its error; the calls behind it must still run
            except BaseException as error:
                logger.warning("%s: %s: %s", self._name, type(error).__name__, error)
            else:
                return


def _run(call: Call) -> None:
    try:
        call.work()
    except BaseException as error:
        call.error = error


_queues: dict[int, weakref.ref[CallQueue]] = {}  # all queues of this process, by id


def runs_call(thread: int) -> bool:
    """Return whether a thread (by its ident) runs a call of any queue of this process."""
    queues = [each() for each in list(_queues.values())]
    return any(queue is not None and queue._runner == thread for queue in queues)
