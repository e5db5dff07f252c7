"""The rows of all runs in memory, updated by one thread.

Ten thousand rows take a few megabytes, because each is stored as encoded JSON. Each row has the
version of its last change. Versions only grow, so a page that sends its version receives exactly
the rows changed since then.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import threading
import time
from typing import Any

from farandole.errors import RunError, SettingsError
from farandole.job.runs import journal
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.jobs.supervisor.index import Index, IndexedRun

COLUMNS = (
    "id",
    "experiment",
    "name",
    "state",
    "target",
    "ranks",
    "nodes",
    "submitted",
    "started",
    "ended",
    "seconds",
    "tags",
    "cause",
    "parent",
    "metrics",
)
LOOK = 0.4  # seconds between two checks of the folders
RELOAD = 5.0  # minimum seconds between two reads of all rows after changes by other processes
_FIRST_WAIT = 1.0  # seconds that the first response waits for the first scan of the folders
_TAIL = 1 << 14  # bytes at the end of a journal to read for the last values
_MOST_METRICS = 50  # last values in a row
_CAUSE = 300  # characters of the cause in a row
_PASSING = (OSError, RunError, SettingsError, sqlite3.Error)  # a later attempt may succeed
_ROUND = 200  # runs whose last metrics are read between two checks
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class RunRows:
    """The rows of a home's runs. ``since`` may be called from any thread."""

    def __init__(self, home: RunsHome) -> None:
        self._home = home
        self._lock = threading.Lock()
        # Versions of an earlier server are smaller, so its pages receive all rows.
        self._first = self.version = int(time.time() * 1000)
        self._rows: dict[str, tuple[int, bytes]] = {}  # in the order of their versions
        self._removed: dict[str, int] = {}
        self._signature: Any = None
        self._index_version = -1
        self._reloaded = 0.0
        self._indexed: dict[str, IndexedRun] = {}  # runs that have not ended
        self._files: dict[str, Any] = {}  # sizes of their files at the last check
        self._without_metrics: list[IndexedRun] = []
        self._over = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="runs", daemon=True)

    def start(self) -> RunRows:
        self._thread.start()
        return self

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def since(self, version: int) -> bytes:
        """Return the JSON of all rows newer than ``version``; 0 returns all rows.

        The object has ``version``, ``columns``, ``rows``, the ids of ``removed`` runs, and
        ``complete``: whether ``rows`` has all runs, so that the page discards all others.
        """
        self._ready.wait(_FIRST_WAIT)
        with self._lock:
            complete = version < self._first or version > self.version
            rows = []
            for number, row in reversed(self._rows.values()):
                if not complete and number <= version:
                    break
                rows.append(row)
            removed = [] if complete else [k for k, v in self._removed.items() if v > version]
            head = _encode(
                {
                    "version": self.version,
                    "complete": complete,
                    "columns": COLUMNS,
                    "removed": removed,
                }
            )
        return b'%b,"rows":[%b]}' % (head[:-1].encode("utf-8", "replace"), b",".join(rows))

    # --- the thread

    def _watch(self) -> None:
        index = self._opened()
        if index is None:
            return
        try:
            with contextlib.suppress(*_PASSING):
                self._publish(list(index.runs()), every=True)
            while not self._over.is_set():
                with contextlib.suppress(*_PASSING):
                    self._scan(index)
                self._ready.set()
                self._over.wait(0 if self._without_metrics else LOOK)
        finally:
            index.close()

    def _opened(self) -> Index | None:
        """Return the index once it can be opened; None after ``close``."""
        while not self._over.is_set():
            with contextlib.suppress(*_PASSING):
                return Index(self._home)
            self._over.wait(LOOK)
        return None

    def _scan(self, index: Index) -> None:
        """Find new, changed and deleted runs."""
        signature = self._folders()
        if signature != self._signature:
            index.refresh()
        is_late = time.monotonic() - self._reloaded >= RELOAD
        if signature != self._signature or (is_late and index.version() != self._index_version):
            self._index_version = index.version()
            self._reloaded = time.monotonic()
            self._publish(list(index.runs()), every=True)
            self._signature = signature
        changed = []
        for run_id, row in list(self._indexed.items()):
            files = _sizes(row.path)
            if files != self._files.get(run_id):
                self._files[run_id] = files
                with contextlib.suppress(RunError, KeyError, TypeError, ValueError):
                    index.update(RunFolder(row.path))
                changed += list(index.runs("run_id = ?", (run_id,)))
        self._publish(changed, metrics=True)
        some, self._without_metrics = (
            self._without_metrics[:_ROUND],
            self._without_metrics[_ROUND:],
        )
        self._publish(some, metrics=True)

    def _folders(self) -> list[tuple[str, int]]:
        """Return the experiments with the times of their last change."""
        found = [("", _changed(self._home.runs))]
        for name in self._home.experiments():
            found.append((name, _changed(os.path.join(self._home.runs, name))))
        return found

    def _publish(
        self, found: list[IndexedRun], *, every: bool = False, metrics: bool = False
    ) -> None:
        """Replace the rows that differ.

        ``every``: whether ``found`` has all runs, so that other rows are removed. ``metrics``:
        whether to reread the last values of the metrics.
        """
        made = []
        for row in reversed(found):
            known = self._rows.get(row.run_id)
            if known is None and not every:  # deleted since then
                continue
            values = last_values(RunFolder(row.path)) if metrics else None
            if values is None and known is not None:
                values = json.loads(known[1])[-1]
            elif values is None:
                self._without_metrics.append(row)
            made.append((row.run_id, encoded(row, values or {})))
            if row.state.final:
                self._indexed.pop(row.run_id, None)
                self._files.pop(row.run_id, None)
            else:
                self._indexed[row.run_id] = row
        with self._lock:
            for run_id, data in made:
                known = self._rows.get(run_id)
                if known is None or known[1] != data:
                    self.version += 1
                    self._rows.pop(run_id, None)
                    self._rows[run_id] = self.version, data
            if every:
                for run_id in self._rows.keys() - {row.run_id for row in found}:
                    self.version += 1
                    del self._rows[run_id]
                    self._removed[run_id] = self.version
                    self._indexed.pop(run_id, None)


def encoded(row: IndexedRun, metrics: dict[str, float | None]) -> bytes:
    """Return a run's row as JSON, in the order of ``COLUMNS``."""
    ended = row.ended
    seconds = None if row.started is None or ended is None else max(0.0, ended - row.started)
    cause = row.cause if len(row.cause) <= _CAUSE else row.cause[:_CAUSE] + "..."
    return _encode(
        [
            row.run_id,
            row.experiment,
            row.name,
            row.state.value,
            row.target,
            row.ranks,
            row.nodes,
            row.submitted,
            row.started,
            ended,
            seconds,
            row.tags,
            cause,
            row.parent,
            metrics,
        ]
    ).encode("utf-8", "replace")


def last_values(folder: RunFolder) -> dict[str, float | None]:
    """Return the last values of the metrics of rank 0 in the last records of its journal."""
    path = folder.metrics_of(0)
    try:
        size = os.path.getsize(path)
    except OSError:
        return {}
    found: dict[str, float | None] = {}
    for record in journal.read(path, max(0, size - _TAIL)).records:
        values = record.get("values") if isinstance(record, dict) else None
        if isinstance(values, dict) and "kind" not in record:
            for name, value in values.items():
                finite = isinstance(value, (int, float)) and math.isfinite(value)
                found[name] = float(f"{value:.6g}") if finite else None
    return dict(sorted(found.items())[:_MOST_METRICS])


def _sizes(path: str) -> list[int]:
    """Return the sizes of the files that determine a run's row."""
    names = ("events.jsonl", "end.json", "tags.json", "metrics/rank-0.jsonl")
    return [_size(os.path.join(path, name)) for name in names]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
