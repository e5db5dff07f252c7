"""The timeline's observer: records events on the engine's thread, in less than a microsecond each,
and writes them on another thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from time import monotonic

from farandole.base import threads
from farandole.base.contracts import Observer
from farandole.base.log import logger
from farandole.base.types import Kind
from farandole.core.observe.timeline.earlier import earlier
from farandole.core.observe.timeline.file import ArrayFile
from farandole.core.observe.timeline.trace import (
    Exchanged,
    ExchangePart,
    Finished,
    Named,
    Record,
    Scope,
    Settled,
    Started,
    Trace,
)

ROOM = 100_000  # maximum number of unwritten records
_PAUSE = 0.04  # seconds between two drains of the records
_SLICE = 8  # records between two writes; a write lets other threads run


class Timeline:
    """The timeline of one rank, from ``init`` to ``shutdown``. It writes between ``start`` and
    ``stop``. ``of`` returns the observer of an engine.
    """

    def __init__(self, rank: int, size: int, clock: float = 0.0) -> None:
        """Create the timeline. ``clock``: seconds by which the job's clock is ahead of this host's
        monotonic clock.
        """
        self.rank = rank
        self.size = size
        self.clock = clock
        self._changing = threading.Lock()
        self._writer: _TraceWriter | None = None

    def start(self, path: str, *, mark_cycles: bool = False, on: bool = False) -> None:
        """Write to ``path`` from now on; ``on``: continue its content.

        An earlier file is closed first, as it may be the same one. Raises SettingsError if the file
        cannot be written.
        """
        with self._changing:
            self._stop()
            found = earlier(path) if on else None
            begin, tensors, end = (
                (found.head["begin"] / 1e6, found.tensors, found.end)
                if found
                else (self.now(), {}, 0)
            )
            trace = Trace(
                self.rank, self.size, begin, time.time(), tensors, mark_cycles=mark_cycles
            )
            self._writer = _TraceWriter(
                ArrayFile(path, end), trace, [] if found else trace.opening()
            )

    def stop(self) -> None:
        """Close the file, which is then complete. Without a file this has no effect."""
        with self._changing:
            self._stop()

    def _stop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def of(self, wire: str, ranks: Sequence[int] = (), prefix: str = "") -> EngineTracer:
        """Return the observer of an engine over ``wire`` (a word in the names of activities).
        ``ranks``: the job's numbers of its ranks (default: all); ``prefix``: prepended to every
        name, to distinguish engines.
        """
        return EngineTracer(self, Scope(prefix, wire.upper(), ranks or range(self.size)))

    def now(self) -> float:
        return monotonic() + self.clock

    def record(self, record: Record) -> None:
        writer = self._writer
        if writer is not None:
            writer.put(record)


class EngineTracer(Observer):
    """Records every event of one engine."""

    def __init__(self, timeline: Timeline, scope: Scope) -> None:
        self.clock = timeline.clock
        self._timeline = timeline
        self._scope = scope
        self._running: Sequence[str] = ()

    def settled(
        self,
        asked: Sequence[Sequence[Named]],
        since: Sequence[Sequence[float]],
        agreed: Sequence[str],
        failed: Sequence[str],
    ) -> None:
        self._timeline.record(
            (self._scope, Settled(monotonic() + self.clock, asked, since, agreed, failed))
        )

    def started(self, kind: Kind, names: Sequence[str], nbytes: int) -> None:
        self._running = names
        self._timeline.record((self._scope, Started(monotonic() + self.clock, kind, names, nbytes)))

    def part(self, name: str, begin: float, end: float) -> None:
        part = ExchangePart(end + self.clock, begin + self.clock, name, self._running[0])
        self._timeline.record((self._scope, part))

    def transferred(self, name: str, what: str, begin: float, end: float) -> None:
        self._timeline.record(
            (self._scope, Exchanged(end + self.clock, begin + self.clock, what, name))
        )

    def finished(self, kind: Kind, names: Sequence[str]) -> None:
        self._timeline.record((self._scope, Finished(monotonic() + self.clock, kind, names)))


class _TraceWriter:
    """One file and the thread that writes it."""

    def __init__(self, file: ArrayFile, trace: Trace, opening: Sequence[str]) -> None:
        self._file = file
        self._trace = trace
        self._records: deque[Record] = deque()
        self._lost = 0
        self._end = threading.Event()
        self._dead = False
        self._thread = threading.Thread(target=self._run, name="farandole-timeline", daemon=True)
        self._write(opening)
        threads.start(self._thread)

    def put(self, record: Record) -> None:
        if len(self._records) < ROOM:
            self._records.append(record)
        else:
            self._lost += 1

    def close(self) -> None:
        """Write the remaining records and close the file."""
        self._end.set()
        self._thread.join()
        self._file.close()

    def _run(self) -> None:
        while not self._end.wait(_PAUSE):
            self._drain()
        self._drain()
        self._write(self._trace.closing())

    def _drain(self) -> None:
        records, trace = self._records, self._trace
        while records:
            events: list[str] = []
            for _ in range(min(_SLICE, len(records))):
                events += trace.events(records.popleft())
            self._write(events)
        if self._lost:
            lost, self._lost = self._lost, 0
            self._write(trace.lost(lost))

    def _write(self, events: Sequence[str]) -> None:
        if self._dead:
            return
        try:
            self._file.append(events)
        except OSError as error:
            self._dead = True  # training continues
            logger.warning(
                "the timeline ends here: %s can no longer be written: %s",
                self._file.path,
                error.strerror,
            )
