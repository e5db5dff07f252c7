"""Samples of memory, processor, GPU and training speed, every few seconds.

A separate thread records the samples. The training thread only adds up the times of its exchanges.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from farandole.base.contracts import Observer, Waiting
from farandole.base.host import content
from farandole.base.types import Kind
from farandole.job.report import training_progress
from farandole.job.tracking import tracker, training
from farandole.job.tracking.gpu import Gpu

LOOK = 1.0  # seconds until the first sample, and between two checks for waits
EVERY = 5  # checks between two samples
LEAST_WAIT = 2.0  # seconds; shorter waits are part of any training
_MOST_NAMES = 3  # of the collectives in a record
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class WaitingEngine(Protocol):
    """``waited``: seconds that this rank has waited for other ranks to join a collective."""

    @property
    def waited(self) -> float: ...


class ExchangeTimes(Observer):
    """The total duration and the total bytes of this rank's collectives. ``combined``: bytes of all
    but broadcasts.
    """

    every = False

    def __init__(self) -> None:
        self.seconds = 0.0
        self.nbytes = 0
        self.combined = 0
        self._began = 0.0

    def started(self, kind: Kind, names: Sequence[str], nbytes: int) -> None:
        self.nbytes += nbytes
        if kind is not Kind.BROADCAST:
            self.combined += nbytes
        self._began = time.monotonic()

    def finished(self, kind: Kind, names: Sequence[str]) -> None:
        self.seconds += time.monotonic() - self._began


class Sampler:
    """Records samples of this rank from ``init`` to ``shutdown``.

    ``waiting`` returns the collectives for which this rank is waiting now.
    """

    def __init__(self, rank: int, waiting: Callable[[], Sequence[Waiting]] = tuple) -> None:
        self.times = ExchangeTimes()
        self.engine: WaitingEngine | None = None
        self._tracker = tracker.begin(rank)
        self._speed = Speed()
        self._cpu = CpuShare()
        self._gpu = Gpu(os.environ)
        self._epoch = 0
        self._totals: dict[str, float] = {}
        self._waiting = waiting
        self._awaited: list[int] = []  # the ranks in the last record of a wait
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="farandole-sampler", daemon=True)
        if self._tracker is not None:
            self._thread.start()

    def _run(self) -> None:
        looks = 0
        while not self._over.wait(LOOK):
            if looks % EVERY == 0:
                self.sample()
            looks += 1
            self.poll()

    def close(self) -> None:
        """Record the last sample and end the thread."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
            self.sample()
            self._note(())  # the last report of the stall check may be older
        self._gpu.close()

    def poll(self) -> None:
        """Record the ranks for which this rank waits, if they have changed since the last check."""
        self._note(
            [wait for wait in self._waiting() if wait.seconds >= LEAST_WAIT and wait.missing]
        )

    def _note(self, long: Sequence[Waiting]) -> None:
        ranks = sorted({rank for wait in long for rank in wait.missing})
        if ranks != self._awaited and self._tracker is not None:
            self._awaited = ranks
            self._tracker.record(
                tracker.WAITING,
                ranks=ranks,
                names=[wait.name for wait in long[:_MOST_NAMES]],
                seconds=round(max((wait.seconds for wait in long), default=0.0), 1),
            )

    def sample(self) -> None:
        """Record one sample."""
        here = self._tracker
        if here is None:
            return
        now = time.monotonic()
        values = {**memory(), **self._cpu.sample(now), **self._gpu.sample()}
        here.record(tracker.SYSTEM, values=values)
        steps = training_progress.steps()
        epoch = training_progress.current_epoch()
        waited = self.engine.waited if self.engine is not None else 0.0
        rows = epoch.rows if epoch is not None else 0.0
        speed = self._speed.sample(now, steps, rows, self.times.seconds, waited, self.times.nbytes)
        totals = training.totals.values(steps, self.times.combined)
        if speed or totals != self._totals:
            here.record(tracker.SYSTEM, step=steps, values={**speed, **totals})
            self._totals = totals
        if epoch is not None and epoch.loss is not None and epoch.number != self._epoch:
            here.scalars({"loss": epoch.loss}, epoch.number - 1)
            self._epoch = epoch.number


class Speed:
    """The training speed between two samples."""

    def __init__(self) -> None:
        self._last = (time.monotonic(), 0, 0.0, 0.0, 0)

    def sample(
        self, now: float, steps: int, rows: float, exchange: float, waited: float, nbytes: int
    ) -> dict[str, float]:
        """Return the speed since the last sample; empty if no step has ended since.

        ``steps``, ``exchange``, ``waited`` and ``nbytes`` are totals so far; ``rows`` is the number
        of rows per step on all ranks.
        """
        before = self._last
        done = steps - before[1]
        if done <= 0 or now <= before[0]:
            if done < 0:  # a new optimizer counts from 0
                self._last = now, steps, exchange, waited, nbytes
            return {}
        self._last = now, steps, exchange, waited, nbytes
        rate = done / (now - before[0])
        return {
            "training/steps_per_second": rate,
            **({"training/rows_per_second": rate * rows} if rows else {}),
            "training/exchange_seconds_per_step": (exchange - before[2]) / done,
            "training/wait_seconds_per_step": (waited - before[3]) / done,
            "training/exchange_bytes_per_step": (nbytes - before[4]) / done,
        }


class CpuShare:
    """The processor use of this process and of its host, in cores, and the host's load average."""

    def __init__(self) -> None:
        self._last = (time.monotonic(), _process_seconds(), host_seconds())

    def sample(self, now: float) -> dict[str, float]:
        before, seconds, of_host = self._last
        self._last = now, _process_seconds(), host_seconds()
        passed = now - before
        if passed <= 0:
            return {}
        return {
            "system/cpu_cores": (self._last[1] - seconds) / passed,
            "system/host_cpu_cores": max(0.0, self._last[2] - of_host) / passed,
            "system/host_load": os.getloadavg()[0],
        }


def _process_seconds() -> float:
    times = os.times()
    return times.user + times.system


def host_seconds() -> float:
    """Return the processor seconds that all processes of the host have used since it started."""
    words = content("/proc/stat").partition("\n")[0].split()
    # user, nice, system, idle, iowait, irq, softirq, steal; the guests' times are part of the first
    ticks = [int(word) for word in words[1:9]]
    return sum(ticks[:3] + ticks[5:]) / _TICKS


def memory() -> dict[str, float]:
    """Return the memory of this process and the free memory of its host, in bytes."""
    found: dict[str, float] = {}
    pages = content("/proc/self/statm").split()
    if len(pages) > 1:
        found["system/memory_bytes"] = int(pages[1]) * _PAGE
    for line in content("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found["system/host_memory_available_bytes"] = int(line.split()[1]) * 1024
    return found


def begin(rank: int, waiting: Callable[[], Sequence[Waiting]] = tuple) -> Sampler:
    """Return a started sampler of ``rank``."""
    return Sampler(rank, waiting)
