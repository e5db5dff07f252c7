"""The process of one mirror: ``python -m farandole.jobs.mirrors.process FOLDER ATTEMPT NAME``.

Follows the journal of rank 0 until the attempt has ended. The progress is in
``mirrors/<name>.json`` of the run's folder, so the mirror receives each record once.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Any

from farandole.job.plugins import registry
from farandole.job.runs import journal
from farandole.job.runs.folder import RunFolder, read_json, write_json
from farandole.job.tracking.tracker import PARAMETERS, SYSTEM
from farandole.jobs import attempts
from farandole.jobs.mirrors.contract import Mirror, Point

EVERY = 1.0  # seconds between two reads of the journal
_TRIES = 30  # consecutive failures before the mirror gives up
_ORPHANED = 30.0  # seconds for the supervisor to record the end of a killed runner
_CHUNK = 1 << 22  # bytes


def main(arguments: list[str]) -> int:
    folder, attempt, name = RunFolder(arguments[0]), int(arguments[1]), arguments[2]
    folder.folder("mirrors")
    follower = Follower(folder, name)
    failures = 0
    end = RunEnd(folder, attempt)
    while True:
        over = end.reached()  # check before the last read of the journal
        try:
            follower.step()
            if over:
                follower.finish()
                return 0
            failures = 0
        except Exception as error:
            failures += 1
            traceback.print_exc()
            if failures == 1:
                folder.record("warning", text=f"the mirror {name}: {_short(error)}")
            if failures >= (3 if over else _TRIES):
                return 1
        time.sleep(EVERY)


def _short(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:300]


class RunEnd:
    """Detects the end of an attempt."""

    def __init__(self, folder: RunFolder, attempt: int) -> None:
        self._folder = folder
        self._attempt = attempt
        self._orphaned = 0.0

    def reached(self) -> bool:
        """Return whether the attempt has ended, or its runner has been missing for a while."""
        if attempts.number(self._folder) > self._attempt or self._folder.end() is not None:
            return True
        runner = attempts.claimant(self._folder, self._attempt)
        if runner is None or runner.alive() or not runner.here:
            self._orphaned = 0.0
            return False
        self._orphaned = self._orphaned or time.monotonic()
        return time.monotonic() - self._orphaned > _ORPHANED


class Follower:
    """Passes new records of rank 0 to a mirror."""

    def __init__(self, folder: RunFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._path = folder.file("mirrors", f"{name}.json")
        self._mirror: Mirror | None = None
        known = read_json(self._path) or {}
        self._offset = int(known.get("offset", 0))
        self._steps: dict[str, int] = known.get("steps", {})
        self._state: dict[str, Any] = known.get("state", {})

    def _opened(self) -> Mirror:
        if self._mirror is None:
            self._mirror = registry.load("mirror", self._name)(self._folder, self._state)
            self._save()
        return self._mirror

    def step(self) -> None:
        """Pass the new records to the mirror. Raises the errors of the mirror."""
        mirror = self._opened()
        while True:
            part = journal.read(self._folder.metrics_of(0), self._offset, _CHUNK)
            if part.offset == self._offset:
                return
            steps = dict(self._steps)
            points = [point for record in part.records for point in points_of(record, steps)]
            if points:
                mirror.points(points)
            for record in part.records:
                if isinstance(record, dict) and record.get("kind") == PARAMETERS:
                    mirror.params(record["values"])
            self._offset, self._steps = part.offset, steps
            self._save()

    def finish(self) -> None:
        """Record the end of the run if it has ended."""
        end = self._folder.end()
        if end is not None:
            self._opened().end(self._folder.state())
            self._save()

    def _save(self) -> None:
        if self._mirror is not None:
            self._state = dict(self._mirror.state())
        write_json(self._path, {"offset": self._offset, "steps": self._steps, "state": self._state})


def points_of(record: Any, steps: dict[str, int]) -> list[Point]:
    """Return the points of a record. ``steps`` counts the values without a step, by name."""
    if not isinstance(record, dict) or record.get("kind", SYSTEM) != SYSTEM:
        return []
    found = []
    for name, value in record.get("values", {}).items():
        step = record.get("step")
        if step is None:
            step = steps[name] = steps.get(name, -1) + 1
        found.append(Point(name, step, record["time"], value))
    return found


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
