"""Calls of a group, run one after the other: by whoever waits for one, else by a thread.

Callbacks of a call run after it, in the order of the calls and one at a time, so that their own
calls are in one order on all ranks. A callback may wait for a call of its own: that has a depth,
and each depth has callbacks of its own.
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

# seconds for which the holder of calls waits, before the thread runs them all the same
_HOLD = 0.02
_PATROL = 1.0  # seconds after calls were left to a holder in which the thread looks by itself


class Call:
    """``work`` is to be run in turn. Afterwards ``done`` is true and ``error`` says how it went.

    ``last``: what belongs to a call that went well, and has to happen before anybody takes it for
    done.
    """

    __slots__ = ("_callbacks", "_event", "depth", "done", "error", "last", "work")

    def __init__(self, work: Callable[[], None], last: Callable[[], None] | None = None) -> None:
        self.work = work
        self.last = last
        self.done = False
        self.depth = getattr(_here, "depth", 0)  # the number of callbacks within which it was made
        self.error: BaseException | None = None
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[], None]] = []

    def finish(self) -> None:
        """End the call, once, and run its callbacks."""
        for callback in self.end():
            callback()

    def end(self) -> list[Callable[[], None]]:
        """End the call, once. The thread that ran it has to run the callbacks returned."""
        if self.last is not None and self.error is None:
            try:
                self.last()
            except BaseException as error:
                self.error = error
        self.last = None  # as work: it may hold large tensors
        with _finishing:
            self.done = True
            event, callbacks = self._event, self._callbacks
            self._callbacks = []
        self.work = _nothing  # it may hold large tensors
        if event is not None:
            event.set()
        return callbacks

    def when_done(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when the call is done: now if it is, else by the thread that has
        run it.
        """
        with _finishing:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def sleep(self, seconds: float | None = None) -> bool:
        """Until it is done. False if the time is over first."""
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
_here = threading.local()  # depth: the number of callbacks of calls within which this thread is


def _nothing() -> None:
    pass


class _Callbacks:
    """Callbacks of one depth, in the order of their calls."""

    def __init__(self, depth: int) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self._depth = depth
        self._lock = threading.Lock()

    def run(self) -> None:
        """Call them all, unless another thread is at it: then that one does. What one raises comes
        after the last.
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
    """The calls of one group, in the order in which they were made. ``behind``: seconds for which
    who holds them may be in another call, which waits for ranks that are late, before the thread
    runs them all the same.
    """

    def __init__(self, name: str, *, behind: float = 0.0) -> None:
        self._name = name
        self._behind = behind
        self._waiting: deque[Call] = deque()
        self._running = threading.Lock()
        self._runner = 0  # the thread that runs a call
        self._callbacks: list[_Callbacks] = [_Callbacks(0)]
        self._news = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._closed = False
        self._holder = 0
        self._holding = False
        self._hurry = threading.Event()
        self._held = -_PATROL  # when calls were last left to a holder
        self._patrols = False  # does the thread look by itself?
        key = id(self)
        _queues[key] = weakref.ref(self, lambda _: _queues.pop(key, None))

    def run(self, call: Call) -> None:
        """Run ``call``, after those before it. On this thread, unless another one is at it."""
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
        """Have ``call`` run in its turn. ``held_by``: the thread (its native id) that is about to
        run all that wait. If it does not, but sleeps, it may wait for them: then a thread of ours
        runs them. To wake that in each backward took 0.4 ms of a core: so it looks by itself now
        and then.
        """
        # who is about to run them may wait for this one
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
        """Somebody asks whether a call is done, perhaps until it is: those that wait are left to
        nobody any longer.
        """
        if self._holder:
            self._holder = 0
            self._hurry.set()
            self._news.release()  # the thread may be between two looks

    def run_all(self) -> None:
        """Run what waits, on this thread. What a signal brings ends the call, and is raised
        here.
        """
        while self._run_next():
            pass

    def wait(self, call: Call) -> None:
        """Until ``call`` is done; what is to be run before it, and itself, runs on this thread if
        no other is at it.
        """
        while not call.done:
            self._check()
            if not self._run_next(call):
                call.sleep()

    def _check(self) -> None:
        """Raise RequestError if this thread is inside a call, and would wait for itself."""
        if self._runner == threading.get_ident():
            raise RequestError(WAITS_FOR_ITSELF)

    @property
    def busy(self) -> bool:
        """Is there a call that has not ended?"""
        return bool(self._waiting) or self._running.locked()

    def close(self) -> None:
        """The thread ends when all calls have run."""
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
        """False if there is none, or ``last`` is done: what comes after it is left to others."""
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
        self._callbacks[call.depth].run()  # with no lock held: callbacks may make calls themselves
        if call.error is not None and interrupts(call.error):
            raise call.error  # a signal: it was meant for this thread, whoever waits for the call
        return True

    def _end(self, call: Call) -> None:
        """Called with ``_running`` held, and ``_Callbacks.run`` after it."""
        callbacks = call.end()
        while len(self._callbacks) <= call.depth:
            self._callbacks.append(_Callbacks(len(self._callbacks)))
        self._callbacks[call.depth].waiting.extend(callbacks)

    def _serve_up_to(self, depth: int) -> None:
        """One thread for each callback that may wait for the call of this depth, and one that runs
        the call.
        """
        with self._starting:
            while len(self._threads) <= depth:
                thread = threading.Thread(
                    target=self._serve, args=(not self._threads,), name=self._name, daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _hold(self) -> Call | None:
        """Leave calls to who is about to run them, as long as that thread works, however long it
        does: if calls began at some time, what they call back would come before or after the next
        call, on each rank otherwise. The last one that is not left to anybody any longer; None if
        there is none.
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
        with contextlib.suppress(IndexError):  # they are run meanwhile
            return self._waiting[-1]
        return None

    def _serve(self, first: bool) -> None:
        while True:
            self._await_news(first)
            last = self._hold()
            if last is not None:
                self._run_quietly(last)  # also those before it, that were to be run by others
            if self._closed and not self._waiting:
                return

    def _await_news(self, first: bool) -> None:
        """The first thread patrols, as long as calls are left to holders now and then."""
        if first:
            self._patrols = True
            found = self._patrol()
            self._patrols = False
            # who left it there may have seen a patrol
            if found or (self._waiting and self._holder):
                return
        self._news.acquire()

    def _patrol(self) -> bool:
        """Is there news, or a call that waits?"""
        while time.monotonic() - self._held < _PATROL:
            if self._news.acquire(timeout=_HOLD) or self._waiting:
                return True
        return False

    def _run_quietly(self, last: Call) -> None:
        """Those up to ``last``. Later ones may be left to somebody again: there is news of each."""
        while True:
            try:
                while self._run_next(last):
                    pass
            # the call has it; those behind it are to run all the same
            except BaseException as error:
                logger.warning("%s: %s: %s", self._name, type(error).__name__, error)
            else:
                return


def _run(call: Call) -> None:
    try:
        call.work()
    except BaseException as error:
        call.error = error


_queues: dict[int, weakref.ref[CallQueue]] = {}  # all of this process, by their ids


def runs_call(thread: int) -> bool:
    """Whether a thread (by its ident) runs a call of any queue of this process."""
    queues = [each() for each in list(_queues.values())]
    return any(queue is not None and queue._runner == thread for queue in queues)
