"""The writer of commits: rank 0's thread that writes the last commit to a folder every so often."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple, Protocol

from farandole.base import threads
from farandole.base.log import logger
from farandole.core.api.commits.commit_file import Commit
from farandole.core.api.commits.store import CommitFolder


class Packable(Protocol):
    """A state whose saved values can be packed."""

    def to_bytes(self, saved: Any) -> bytes: ...


class _Last(NamedTuple):
    """The last commit: its state, its number, its time in seconds, and its saved values."""

    state: Packable
    number: int
    time: float
    saved: Any


class CommitWriter:
    """Writes commits to ``folder``, at most one every ``seconds``, in the background.

    A failed write is reported once, and tried again with a later commit.
    """

    def __init__(self, folder: CommitFolder, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._last: _Last | None = None
        self._written = 0  # the number of the last written commit
        self._due = 0.0  # the first commit is written at once
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()
        self._failure = ""

    def offer(self, state: Packable, number: int, saved: Any) -> None:
        """Record the commit ``number`` with its ``saved`` values, and begin to write it if a write
        is due and none is in progress.
        """
        self._last = _Last(state, number, time.time(), saved)
        now = time.monotonic()
        if now < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        self._due = now + self._seconds
        self._thread = threading.Thread(target=self._write, name="farandole-commits", daemon=True)
        threads.start(self._thread)

    def write_now(self) -> bool:
        """Write the last commit unless it is on disk. Return whether the last commit is on disk
        now.
        """
        self._write()
        last = self._last
        return last is not None and self._written >= last.number

    def _write(self) -> None:
        with self._writing:
            last = self._last
            if last is None or self._written == last.number:
                return
            name = type(last.state).__name__
            try:
                content = last.state.to_bytes(last.saved)
                self._folder.write(Commit(last.number, last.time, name, content))
                self._written, self._failure = last.number, ""
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                if failure != self._failure:
                    self._failure = failure
                    logger.warning(
                        "commit %d could not be written to %s: %s. Training continues; check"
                        " --commit-dir",
                        last.number,
                        self._folder.path,
                        failure,
                    )
