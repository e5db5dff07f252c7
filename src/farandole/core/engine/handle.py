"""A submitter's handle: the state and the results of its collectives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from farandole.base.contracts import Codec
from farandole.base.types import Buffer, Request
from farandole.errors import HorovodInternalError


class Entry(NamedTuple):
    """One collective to run: the request and its memory.

    ``serial`` distinguishes collectives of the same request. Unnamed ones are numbered, so that
    their requests, and the remembered decisions for them, do not change from call to call.

    - ``codec``: The codec named in ``request.codec``, with this rank's state.
    - ``key``: The key of that state (empty: the request's name).
    - ``given``: See ``contracts.Part``.
    """

    request: Request
    buffer: Buffer
    serial: int = 0
    codec: Codec | None = None
    key: str = ""
    given: bool = True

    @property
    def name(self) -> str:
        """The name for the ranks' agreement."""
        return f"{self.request.name}.{self.serial}" if self.serial else self.request.name


class Wait(Protocol):
    """An event that a thread waits for."""

    def done(self) -> bool: ...
    def sleep(self) -> None:
        """Wait while another thread runs the rounds."""


class Handle:
    """The outcome of one ``submit``: a result for each entry, in order (see ``Engine.submit``), or
    an error.
    """

    __slots__ = ("_afters", "_done", "_drive", "_error", "_left", "_results", "_waiters", "waited")

    def __init__(self, count: int, drive: Callable[[Handle], None]) -> None:
        self._results: list[Any] = [None] * count
        self._left = count
        self.waited = False  # a thread is blocked on it
        self._done = count == 0
        self._error: HorovodInternalError | None = None
        self._drive = drive
        self._waiters: list[Callable[[], object]] = []
        # device actions that each waiting thread runs
        self._afters: tuple[Callable[[], None], ...] = ()

    def done(self) -> bool:
        """Return whether the results or the error are available."""
        return self._done

    @property
    def error(self) -> HorovodInternalError | None:
        """The error that ``wait`` will raise; None if there is none, or none yet."""
        return self._error if self._done else None

    def wait(self) -> list[Any]:
        """Wait for the results and return them. Raises the collective's error
        (HorovodInternalError).
        """
        if not self._done:
            self.waited = True
            self._drive(self)
        if self._error is not None:
            raise self._error
        for after in self._afters:
            after()
        return self._results

    def sleep(self) -> None:
        """Wait for another thread to finish this handle."""
        waiter = threading.Lock()  # released in one step, even if a signal handler raises
        waiter.acquire()
        self._waiters.append(waiter.release)
        if not self._done:
            waiter.acquire()

    def when_done(self, call: Callable[[], None]) -> None:
        """Call ``call`` once when this handle is done, on the thread that finishes it; immediately
        if it is done.

        ``call`` must be quick and must not raise: the rounds of all collectives wait for it.
        """
        self._waiters.append(call)
        if self._done:
            self._notify()

    def finish(self, index: int, result: Any, after: Callable[[], None] | None = None) -> None:
        """Store a result. ``after`` is called by each waiting thread after its wait."""
        self._results[index] = result
        if after is not None and after not in self._afters:
            self._afters += (after,)
        self._left -= 1
        if not self._left:
            self._complete()

    def fail(self, error: HorovodInternalError) -> None:
        """Record the failure of an entry. The first error is the one raised; the handle is done
        when all entries have finished or failed.
        """
        if self._error is None:
            self._error = error
        self._left -= 1
        # negative if a signal handler raised between the last ``finish`` and ``_complete``
        if self._left <= 0:
            self._complete()

    def _complete(self) -> None:
        self._done = True
        if self._waiters:
            self._notify()

    def _notify(self) -> None:
        while self._waiters:
            try:
                call = self._waiters.pop()
            except IndexError:  # another thread took the last one
                return
            call()


class Item(NamedTuple):
    """An entry in the engine."""

    entry: Entry
    handle: Handle
    place: int  # index in the results of the handle
    since: float
    event: Any = None  # recorded on the device at submission
