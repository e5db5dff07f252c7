"""Waiting for a run, and following the output of its ranks."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Iterator

from farandole.errors import RunError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.states import RunState
from farandole.jobs import rank_journal

_LOOK = 0.1  # seconds between two checks
_CHUNK = 1 << 20
_QUIET_LOOKS = 5  # checks after the end of the run, for late output


class LogReader:
    """Reads new text from a log."""

    def __init__(self, path: str, tail: int = 0) -> None:
        """``tail``: the number of last lines to begin with; 0 begins with the first line."""
        self._path = path
        self._offset = _start_of_tail(path, tail) if tail else 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def read(self) -> str:
        """Return the new text, at most 1 MiB; empty if there is none."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(_CHUNK)
        except FileNotFoundError:
            return ""
        self._offset += len(data)
        return self._decode(data)


def _start_of_tail(path: str, lines: int) -> int:
    """Return the offset in bytes of the last ``lines`` lines."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            position, found = end, 0
            while position > 0:
                size = min(_CHUNK, position)
                position -= size
                file.seek(position)
                data = file.read(size)
                if position + size == end and data.endswith(b"\n"):
                    data = data[:-1]
                place = len(data)
                while (place := data.rfind(b"\n", 0, place)) >= 0:
                    found += 1
                    if found == lines:
                        return position + place + 1
    except FileNotFoundError:
        pass
    return 0


def log_path(folder: RunFolder, rank: int | None) -> str:
    """Return the path of a rank's log, or of the log of all ranks if ``rank`` is None. In an
    elastic run, ``rank`` is a process number.

    Raises RunError if the run has no such rank.
    """
    if rank is None:
        return folder.file("logs", "runner.txt")
    resources = folder.spec().resources
    records = rank_journal.read(folder)
    if resources.elastic or records.memberships:
        known = len(records.processes) or resources.ranks
        if not (0 <= rank < known or os.path.exists(folder.log_of(rank))):
            raise RunError(
                f"run {folder.run_id} has had the processes 0 to {known - 1}, and no process {rank}"
            )
        return folder.log_of(rank)
    ranks = resources.ranks
    if not 0 <= rank < ranks:
        raise RunError(f"run {folder.run_id} has the ranks 0 to {ranks - 1}, and no rank {rank}")
    return folder.log_of(rank)


def follow(folder: RunFolder, rank: int | None = None, tail: int = 0) -> Iterator[str]:
    """Yield the log's text as it appears, until the run has ended and all text is read."""
    reader = LogReader(log_path(folder, rank), tail)
    quiet = 0
    while True:
        text = reader.read()
        if text:
            yield text
            continue
        if folder.end() is not None:
            quiet += 1
            if quiet > _QUIET_LOOKS:
                return
        time.sleep(_LOOK)


def wait(folder: RunFolder, timeout: float | None = None) -> RunState:
    """Wait for the run's end and return its final state.

    Raises TimeoutError after ``timeout`` seconds, and RunError if the folder disappears.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while (end := folder.end()) is None:
        if not folder.exists():
            raise RunError(f"the folder of run {folder.run_id} no longer exists: {folder.path}")
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(
                f"run {folder.run_id} is still {folder.state().value} after {timeout:g} seconds"
            )
        time.sleep(_LOOK)
    return RunState(end["state"])
