"""Server-sent events: changes of the list of runs, and of the run on a page."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool

from farandole.dashboard.server.rows import RunRows
from farandole.job.runs import journal
from farandole.job.runs.folder import RunFolder
from farandole.job.tracking.tracker import WAITING
from farandole.jobs import rank_journal

LOOK = 0.3  # seconds between two checks
_PING = 15.0  # seconds without an event after which a comment keeps the connection alive
_MOST_RANKS = 64
_MOST_BYTES = 1 << 20  # maximum of a journal in one event


def event(name: str, data: bytes) -> bytes:
    """Return an event in the format of the HTML standard, section 9.2."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


async def events(
    rows: RunRows, version: int, folder: RunFolder | None, is_over: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield server-sent events until ``is_over()``.

    Arguments:
        rows: The rows of all runs.
        version: The version of the rows that the page has.
        folder: The run on the page, or None.
        is_over: Returns whether the server is shutting down.

    The events are:

    - ``runs``: The same object as ``GET /api/runs?since=``, when rows have changed.
    - ``run``: ``{"state", "cause", "stopping"}`` of the shown run, when its events or its ranks
      have changed.
    - ``points``: ``{"rank", "series": {name: {"step", "time", "y"}}}``: new points of the shown
      run's metrics.
    - ``log``: ``{"rank": bytes}``: the sizes of the shown run's logs that have changed; ``all`` is
      the log of all ranks.
    """
    watch = RunWatch(folder) if folder else None
    yield b"retry: 1000\n\n"
    quiet = 0.0
    while not is_over():
        found = []
        newest = (
            rows.version
        )  # before the rows, because later changes must be sent in the next round
        if newest != version:
            found.append(event("runs", await run_in_threadpool(rows.since, version)))
            version = newest
        if watch is not None:
            found += await run_in_threadpool(watch.poll)
        quiet = 0.0 if found else quiet + LOOK
        if quiet >= _PING:
            found, quiet = [b": ping\n\n"], 0.0
        for each in found:
            yield each
        await asyncio.sleep(LOOK)


class RunWatch:
    """Finds the changes in the files of one run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._state: Any = None
        self._offsets: dict[int, int] = {}
        resources = folder.spec().resources
        ranks = min(resources.most_ranks, _MOST_RANKS)
        self._logs = {str(rank): folder.log_of(rank) for rank in range(ranks)}
        self._logs["all"] = folder.file("logs", "runner.txt")
        self._journals = {rank: folder.metrics_of(rank) for rank in range(ranks)}
        for rank, path in self._journals.items():
            self._offsets[rank] = _last_line(path)

    def poll(self) -> list[bytes]:
        """Return the events of all changes since the last call."""
        found = []
        state = self._changed_state()
        if state is not None:
            found.append(event("run", _json(state)))
        for rank, path in self._journals.items():
            points = self._points(rank, path)
            if points:
                found.append(event("points", _json({"rank": rank, "series": points})))
        logs = {}
        for name, path in self._logs.items():
            size = _size(path)
            if size != self._sizes.get(name, 0):
                self._sizes[name] = logs[name] = size
        if logs:
            found.append(event("log", _json(logs)))
        return found

    def _changed_state(self) -> dict[str, Any] | None:
        folder = self._folder
        names = ("events.jsonl", "end.json", "requests/cancel", "ranks.jsonl")
        key = [_stamp(folder.file(name)) for name in names]
        if key == self._state or not folder.exists():
            return None
        self._state = key
        started = sorted(rank_journal.processes(folder))[-_MOST_RANKS:]
        self._logs |= {str(process): folder.log_of(process) for process in started}
        end = folder.end()
        return {
            "state": folder.state().value,
            "cause": end["cause"] if end else "",
            "stopping": end is None and key[2] != 0,
        }

    def _points(self, rank: int, path: str) -> dict[str, dict[str, list[Any]]]:
        part = journal.read(path, self._offsets[rank], _MOST_BYTES)
        self._offsets[rank] = part.offset
        found: dict[str, dict[str, list[Any]]] = {}
        for record in part.records:
            if isinstance(record, dict) and record.get("kind") == WAITING:
                self._state = None  # the table of ranks has changed
            values = record.get("values") if isinstance(record, dict) else None
            if not isinstance(values, dict) or record.get("kind", "system") != "system":
                continue
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    series = found.setdefault(name, {"step": [], "time": [], "y": []})
                    series["step"].append(record.get("step"))
                    series["time"].append(record.get("time"))
                    series["y"].append(value if math.isfinite(value) else None)
        return found


def _json(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


def _last_line(path: str) -> int:
    """Return the offset after the last complete line of a journal."""
    size = _size(path)
    try:
        with open(path, "rb") as file:
            start = max(0, size - _MOST_BYTES)
            return start + os.pread(file.fileno(), size - start, start).rfind(b"\n") + 1
    except OSError:
        return 0


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _stamp(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
