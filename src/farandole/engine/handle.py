"""What a submitter holds: done yet? wait for it; its results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from farandole.errors import HorovodInternalError
from farandole.types import Buffer, Request


class Entry(NamedTuple):
    """One collective to run: what is asked for, and the memory it is about.

    ``serial`` tells apart collectives of the same request: unnamed ones are numbered, so that their requests (and
    with them everything that is remembered about them) stay the same from call to call.
    """

    request: Request
    buffer: Buffer
    serial: int = 0

    @property
    def name(self) -> str:
        """The name under which the ranks agree."""
        return f"{self.request.name}.{self.serial}" if self.serial else self.request.name


class Handle:
    """The outcome of one ``submit``: a result per entry, in order (see ``Engine.submit``), or an error."""

    __slots__ = ("_done", "_drive", "_error", "_left", "_results", "_waiters")

    def __init__(self, count: int, drive: Callable[[Handle], None]) -> None:
        self._results: list[Any] = [None] * count
        self._left = count
        self._done = count == 0
        self._error: HorovodInternalError | None = None
        self._drive = drive
        self._waiters: list[threading.Event] = []

    def done(self) -> bool:
        """True when the results are there, or the error."""
        return self._done

    def wait(self) -> list[Any]:
        """The results. Blocks; raises what the collective failed with (HorovodInternalError)."""
        if not self._done:
            self._drive(self)
        if self._error is not None:
            raise self._error
        return self._results

    def sleep(self) -> None:
        """Wait for another thread to finish this."""
        waiter = threading.Event()
        self._waiters.append(waiter)
        if not self._done:
            waiter.wait()

    def finish(self, index: int, result: Any) -> None:
        self._results[index] = result
        self._left -= 1
        if not self._left:
            self._complete()

    def fail(self, error: HorovodInternalError) -> None:
        """The first error is the one that is raised; the handle is done when all entries are accounted for."""
        if self._error is None:
            self._error = error
        self._left -= 1
        if not self._left:
            self._complete()

    def _complete(self) -> None:
        self._done = True
        for waiter in self._waiters:
            waiter.set()
