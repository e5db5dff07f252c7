"""A submitter's handle: done yet? wait for it; its results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from farandole.base.contracts import Codec
from farandole.base.types import Buffer, Request
from farandole.errors import HorovodInternalError


class Entry(NamedTuple):
    """One collective to run: the request, and its memory.

    ``serial`` tells apart collectives of the same request: unnamed ones are numbered, so that their
    requests (and with them everything that is remembered about them) stay the same from call to
    call. ``codec``: what ``request.codec`` names, with this rank's state; ``key``: under what it
    keeps that (empty: the request's name); ``given``: see ``contracts.Part``.
    """

    request: Request
    buffer: Buffer
    serial: int = 0
    codec: Codec | None = None
    key: str = ""
    given: bool = True

    @property
    def name(self) -> str:
        """The name under which the ranks agree."""
        return f"{self.request.name}.{self.serial}" if self.serial else self.request.name


class Wait(Protocol):
    """What a thread waits for."""

    def done(self) -> bool: ...
    def sleep(self) -> None:
        """Wait while another thread runs the rounds."""


class Handle:
    """The outcome of one ``submit``: a result per entry, in order (see ``Engine.submit``), or an
    error.
    """

    __slots__ = ("_afters", "_done", "_drive", "_error", "_left", "_results", "_waiters", "waited")

    def __init__(self, count: int, drive: Callable[[Handle], None]) -> None:
        self._results: list[Any] = [None] * count
        self._left = count
        self.waited = False  # by a thread that cannot go on
        self._done = count == 0
        self._error: HorovodInternalError | None = None
        self._drive = drive
        self._waiters: list[Callable[[], object]] = []
        self._afters: tuple[Callable[[], None], ...] = ()  # actions of a waiting thread for devices

    def done(self) -> bool:
        """True when the results are there, or the error."""
        return self._done

    @property
    def error(self) -> HorovodInternalError | None:
        """What ``wait`` will raise; None if it is not known yet, or all went well."""
        return self._error if self._done else None

    def wait(self) -> list[Any]:
        """The results. Blocks; raises the collective's error (HorovodInternalError)."""
        if not self._done:
            self.waited = True
            self._drive(self)
        if self._error is not None:
            raise self._error
        for after in self._afters:
            after()
        return self._results

    def sleep(self) -> None:
        """Wait for another thread to finish this."""
        waiter = threading.Lock()  # released in one step, also where a signal's handler raises
        waiter.acquire()
        self._waiters.append(waiter.release)
        if not self._done:
            waiter.acquire()

    def when_done(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when this is done, once, by whichever thread finishes it (by this
        one if it is done).

        It must be quick and raise nothing: the rounds of all collectives wait for it.
        """
        self._waiters.append(call)
        if self._done:
            self._notify()

    def finish(self, index: int, result: Any, after: Callable[[], None] | None = None) -> None:
        """``after``: to be called by every thread that waits, when it has waited."""
        self._results[index] = result
        if after is not None and after not in self._afters:
            self._afters += (after,)
        self._left -= 1
        if not self._left:
            self._complete()

    def fail(self, error: HorovodInternalError) -> None:
        """The first error is the one that is raised; the handle is done when all entries are
        accounted for.
        """
        if self._error is None:
            self._error = error
        self._left -= 1
        # less: a signal's handler raised between the last ``finish`` and ``_complete``
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
            except IndexError:  # another thread is here, too, and took the last one
                return
            call()


class Item(NamedTuple):
    """An entry on its way through the engine."""

    entry: Entry
    handle: Handle
    place: int  # among the results of the handle
    since: float
    event: Any = None  # where a device was when this was submitted
