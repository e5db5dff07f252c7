"""The journal of this rank's metrics."""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import count
from threading import Lock
from typing import Any

from farandole.base.host import cores
from farandole.base.log import logger
from farandole.job.config import Placement
from farandole.job.runs.folder import ATTEMPT_VARIABLE, RUN_VARIABLE, RunFolder
from farandole.job.runs.journal import JournalWriter

PROCESS, PARAMETERS, ARTIFACT, TABLE, FINDING, SYSTEM, TRAINING, WAITING = (
    "process",
    "params",
    "artifact",
    "table",
    "finding",
    "system",
    "training",
    "waiting",
)


class Tracker:
    """Appends records of one rank to its journal. Thread-safe.

    Records of scalars are ``{"step", "time", "values"}``; all others have a ``kind``. The first
    record of each process has the kind ``process``. From the second attempt on, records contain the
    number of the attempt, because ranks of an earlier attempt may still write for a while. A full
    disk causes one warning and does not stop the training.
    """

    def __init__(self, folder: RunFolder, rank: int, attempt: int = 1) -> None:
        """Raises OSError if the journal cannot be created."""
        folder.folder("metrics")
        self.folder = folder
        self.rank = rank
        self._journal = JournalWriter(folder.metrics_of(rank))
        self._steps: defaultdict[str, Iterator[int]] = defaultdict(count)
        self._warned = False
        self._attempt = {"attempt": attempt} if attempt > 1 else {}
        self.record(
            PROCESS,
            attempt=attempt,
            pid=os.getpid(),
            host=socket.gethostname(),
            cores=cores(),
        )

    def scalars(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers of one step.

        ``step``: by default the number of this process's earlier records of the first name.
        """
        if step is None:
            step = next(self._steps[next(iter(values))])
        self._append(
            {"step": step, "time": round(time.time(), 3), "values": values, **self._attempt}
        )

    def record(self, kind: str, **values: Any) -> None:
        """Record data of a ``kind`` other than scalars."""
        self._append({"kind": kind, "time": round(time.time(), 3), **self._attempt, **values})

    def _append(self, record: Mapping[str, Any]) -> None:
        # One write to a file opened for appending needs no lock.
        try:
            self._journal.append(record)
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "the metrics of rank %d of run %s cannot be written: %s. Training continues;"
                " values are lost until there is space in %s",
                self.rank,
                self.folder.run_id,
                error.strerror,
                self.folder.path,
            )

    def close(self) -> None:
        self._journal.close()


_lock = Lock()
_tracker: Tracker | None = None
_closed = False  # this process has no run, or the run's folder cannot be written


def current() -> Tracker | None:
    """Return this process's tracker; None outside a run.

    If there is no run, or its folder cannot be written, the first call logs a warning.
    """
    if _tracker is not None or _closed:
        return _tracker
    return begin()


def begin(rank: int | None = None) -> Tracker | None:
    """Return the tracker of ``rank``, by default the rank of the environment; None outside a run.

    A process whose rank changes continues the journal of its new rank.
    """
    global _tracker, _closed
    with _lock:
        rank = Placement.from_env().rank if rank is None else rank
        if _tracker is not None and _tracker.rank == rank:
            return _tracker
        path = os.environ.get(RUN_VARIABLE, "")
        if not path:
            _closed = True
            _report_no_run(rank)
            return None
        attempt = os.environ.get(ATTEMPT_VARIABLE, "")
        try:
            _tracker = Tracker(RunFolder(path), rank, int(attempt) if attempt.isdecimal() else 1)
        except OSError as error:
            _closed = True
            logger.warning(
                "rank %d cannot write metrics to its run's folder %s: %s. Training continues"
                " without metrics",
                rank,
                path,
                error.strerror,
            )
    return _tracker


def _report_no_run(rank: int) -> None:
    if rank == 0:
        logger.warning(
            "farandole.log_* has no effect, because this process does not belong to a run; start"
            " it with farandole submit, or with farandole run --track"
        )


def _forget() -> None:
    """Forget the tracker in a forked child, which opens its own."""
    global _tracker, _lock, _closed
    _lock = Lock()
    _tracker = None
    _closed = False


os.register_at_fork(after_in_child=_forget)
