"""The writer of commits: rank 0's thread that writes the last commit to a folder at intervals."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from farandole.base import threads
from farandole.base.log import logger
from farandole.core.api.commits.commit_file import Commit
from farandole.core.api.commits.store import FULL, CommitFolder, ForeignCommitError


class Packable(Protocol):
    """A state whose saved values can be packed."""

    def to_bytes(self, saved: Any) -> bytes: ...


class _Last(NamedTuple):
    """The last commit: its state, its number, its time in seconds, its saved values, and the number
    of ranks that write their own values with it (0: none).
    """

    state: Packable
    number: int
    time: float
    saved: Any
    ranks: int


class CommitWriter:
    """Writes commits to ``folder``, at most one every ``seconds``, in the background.

    ``job``: the id of the job. ``shares``: the number of shares of its fixed global batch, or 0.
    ``servers``: returns the packed states of parameter servers at a commit, by its number.

    After a failed write, a later commit is tried. The first of several failures with one reason is
    reported, and so is the end of the failures. When another job writes to the folder, no more
    commits are written.
    """

    def __init__(
        self,
        folder: CommitFolder,
        seconds: float,
        job: str = "",
        shares: int = 0,
        servers: Callable[[int], bytes] = lambda number: b"",
    ) -> None:
        self._servers = servers
        self._folder, self._seconds = folder, seconds
        self._job, self._shares = job, shares
        self._last: _Last | None = None
        self._written = 0  # the number of the last written commit
        self._due = 0.0  # the first commit is written immediately
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()
        self._failure: tuple[str, int | None] | None = None  # the kind of the last failure
        self._reason = ""  # the reason of the last failed write
        self._failed = 0  # the number of the last commit with a reported failure
        self._has_ended = False

    def offer(self, state: Packable, number: int, saved: Any, ranks: int = 0) -> None:
        """Record the commit ``number`` with its ``saved`` values. ``ranks``: see ``Commit``."""
        self._last = _Last(state, number, time.time(), saved, ranks)

    def is_due(self) -> bool:
        """Return whether it is time to write a commit, and no write is in progress."""
        busy = self._thread is not None and self._thread.is_alive()
        return time.monotonic() >= self._due and not busy

    def start(self) -> None:
        """Start to write the last commit, after a write in progress."""
        last = self._last
        if last is None:
            return
        self._due = time.monotonic() + self._seconds
        # fetched now, before this rank's next step changes them
        servers = self._servers(last.number)
        self._thread = threading.Thread(
            target=self._write, args=(last, servers), name="farandole-commits", daemon=True
        )
        threads.start(self._thread)

    def write_now(self) -> bool:
        """Write the last commit unless it is on disk. Return whether the last commit is on disk
        now.
        """
        last = self._last
        if last is None:
            return False
        if self._written != last.number:
            self._write(last, self._servers(last.number))
        return self._written >= last.number

    def finish(self) -> None:
        """Write the last commit, and report a failure even if it is not the first one."""
        if self.write_now() or self._last is None or self._failed == self._last.number:
            return
        logger.warning(
            "the last commit %d could not be written to %s: %s",
            self._last.number,
            self._folder.path,
            self._reason,
        )

    def _write(self, last: _Last, servers: bytes) -> None:
        with self._writing:
            newest = last if self._last is None else self._last
            if self._written in (last.number, newest.number) or self._has_ended:
                return
            name, content = type(last.state).__name__, b""
            try:
                content = last.state.to_bytes(last.saved)
                self._folder.write(
                    Commit(
                        last.number,
                        last.time,
                        name,
                        content,
                        self._job,
                        self._shares,
                        servers,
                        last.ranks,
                    )
                )
            except ForeignCommitError as error:
                self._end(error, last.number)
            except Exception as error:
                self._report(error, last.number, len(content))
            else:
                self._written = last.number
                if self._failure is not None:
                    logger.warning(
                        "commits are written to %s again: commit %d", self._folder.path, last.number
                    )
                self._failure = None

    def _report(self, error: Exception, number: int, size: int) -> None:
        """Report the failed write of the commit ``number`` with ``size`` bytes."""
        code = error.errno if isinstance(error, OSError) else None
        self._reason, cure = f"{type(error).__name__}: {error}", "Check --commit-dir"
        if code in FULL:
            space = self._folder.space()
            free = "" if space is None else f", and {space:,} are free"
            self._reason = f"{os.strerror(code)}: it has {size:,} bytes{free}"
            cure = "Make space"
        kind = type(error).__name__, code
        if kind == self._failure:
            return
        self._failure, self._failed = kind, number
        logger.warning(
            "commit %d could not be written to %s: %s. Training continues, and the next"
            " commits are tried every %g s. %s",
            number,
            self._folder.path,
            self._reason,
            self._seconds,
            cure,
        )

    def _end(self, error: ForeignCommitError, number: int) -> None:
        self._has_ended, self._failed, self._reason = True, number, str(error)
        logger.error(
            "another job has written the commit %s. Training continues, but writes no more"
            " commits to the folder: commit %d and later ones are lost with all ranks. Give each"
            " job its own --commit-dir",
            error.name,
            number,
        )
