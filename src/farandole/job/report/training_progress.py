"""Training speed and progress of this process, for the status line of a watched job.

The training loop counts its steps, which costs an addition. Only rank 0 of a watched job has a
thread that reads the counts and reports them to the driver once a second.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from typing import NamedTuple

from farandole.job.config import Placement
from farandole.job.config.rank_variables import STATUS
from farandole.job.report import messages

EVERY = 1.0  # seconds between reports
WINDOW = 10  # number of reports over which the rate is averaged


class Counter:
    """The steps of one optimizer: ``counter.steps += 1``."""

    __slots__ = ("__weakref__", "_owner", "steps")

    def __init__(self, owner: TrainingProgress) -> None:
        self.steps = 0
        self._owner = owner

    def __del__(self) -> None:
        self._owner.ended_steps = self.steps


class Epoch(NamedTuple):
    """An epoch of training.

    - ``number``, ``of``: Its number from 1, and the number of epochs.
    - ``steps``: Steps per epoch (0: unknown).
    - ``before``: The step count at its beginning.
    - ``rows``: Rows of all ranks per step, if known.
    - ``loss``: The loss of the previous epoch, if known.
    """

    number: int
    of: int
    steps: int
    before: int
    rows: float = 0.0
    loss: float | None = None


class TrainingProgress:
    """The counters of this process, and its current epoch."""

    def __init__(self) -> None:
        self.ended_steps = 0  # of the optimizer that was freed last
        self._counters: weakref.WeakSet[Counter] = weakref.WeakSet()
        self._epoch: Epoch | None = None
        self._seen: deque[tuple[float, int]] = deque(maxlen=WINDOW + 1)

    def counter(self) -> Counter:
        made = Counter(self)
        self._counters.add(made)
        return made

    def steps(self) -> int:
        """Return the step count of the most active optimizer; some programs have several. Without
        one, return the last one's count.
        """
        counted = (counter.steps for counter in list(self._counters))
        return max(counted, default=self.ended_steps)

    def epoch(
        self, number: int, of: int, steps: int, rows: float = 0.0, loss: float | None = None
    ) -> None:
        """Begin an epoch; see ``Epoch``. ``of`` may be 0 (unknown) too."""
        self._epoch = Epoch(number, of, steps, self.steps(), rows, loss)

    def report(self, now: float) -> dict[str, float]:
        """Return the report to the driver; empty without new steps."""
        steps = self.steps()
        if self._seen and self._seen[-1][1] == steps:
            return {}
        if self._seen and self._seen[-1][1] > steps:  # the counted optimizer is gone
            if not self._counters:
                return {}
            self._seen.clear()
        self._seen.append((now, steps))
        first, before = self._seen[0]
        rate = (steps - before) / (now - first) if now > first else 0.0
        found: dict[str, float] = {"step": steps, "rate": rate}
        if self._epoch is not None:
            number, of, length, began, rows, loss = self._epoch
            found |= {"epoch": number, "epochs": of, "step": steps - began, "steps": length}
            found |= {} if loss is None else {"loss": loss}
            found |= {"rows": rate * rows} if rows else {}
            if rate and of and length:
                found["left"] = max(0.0, ((of - number + 1) * length - (steps - began)) / rate)
        return found

    def current_epoch(self) -> Epoch | None:
        return self._epoch


_progress = TrainingProgress()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def counter() -> Counter:
    """Return a new counter. The first starts the reporting thread if this rank is watched."""
    global _thread
    with _lock:
        if _thread is None and os.environ.get(STATUS) and Placement.from_env().rank == 0:
            _thread = threading.Thread(target=_report, name="farandole-progress", daemon=True)
            _thread.start()
            # so that an ended job shows its last step, not its step a second earlier
            atexit.register(_report_now)
    return _progress.counter()


def steps() -> int:
    """Return the number of steps of this process; see ``TrainingProgress.steps``."""
    return _progress.steps()


def current_epoch() -> Epoch | None:
    """Return the current epoch; None if no epoch has begun."""
    return _progress.current_epoch()


def epoch(
    number: int, of: int = 0, steps: int = 0, rows: float = 0.0, loss: float | None = None
) -> None:
    """Begin an epoch.

    ``number`` counts from 1; ``of`` is the number of epochs and ``steps`` the steps per epoch, 0 if
    unknown. ``rows`` (of all ranks per step) and ``loss`` (of the previous epoch) are shown if
    known.
    """
    _progress.epoch(number, of, steps, rows, loss)


def _report() -> None:
    while True:
        time.sleep(EVERY)
        _report_now()


def _report_now() -> None:
    facts = _progress.report(time.monotonic())
    if facts:
        messages.progress(**facts)
