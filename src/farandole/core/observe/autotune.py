"""Autotune: tries sizes of exchanges while training goes on, and keeps the fastest.

Rank 0 measures and decides; its decisions hang on what it posts, so all ranks obey in the same
round. A Gaussian process over the sizes tried so far says which one promises most (expected
improvement: Mockus, "On Bayesian methods for seeking the extremum", 1974). At the end the best one
has to beat the sizes it started from in a duel, or those are kept.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Generator, Sequence
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol, TextIO

import numpy as np

from farandole.base.contracts import Observer
from farandole.base.log import logger
from farandole.base.types import Kind, Sizes
from farandole.errors import SettingsError
from farandole.job.config import Settings

if TYPE_CHECKING:
    from farandole.base.types import Array

SAMPLES = 5  # per size; the median counts
GAIN = 1.02  # a challenger must be better by so much, or what was there stays
SHORTEST = 0.02  # seconds that a sample lasts at least
THRESHOLDS = [0, *(1 << power for power in range(18, 28))]  # 0, 256 KiB, ... 128 MiB
BUCKETS = [1 << power for power in range(20, 27)]  # 1 MiB ... 64 MiB
_REACH = 0.3  # over which part of an axis a measurement tells of its neighbours


class Sample(NamedTuple):
    """``score``: bytes exchanged per microsecond of training; ``step_bytes``: bytes exchanged in a
    step.
    """

    score: float
    step_bytes: float


class Tuned(Protocol):
    """The tuner's view of an engine. A strategy that can change the size of its buckets lays them
    out with rank 0's ``sizes`` on all ranks, and says so in ``bucketed``; as long as that is None,
    buckets are left alone.
    """

    bucketed: int | None

    @property
    def sizes(self) -> Sizes: ...

    def propose(self, sizes: Sizes) -> None: ...


class Search:
    """Which point of a grid is best? Pure: ``ask`` gives a point to measure, ``tell`` takes the
    score.
    """

    def __init__(
        self, axes: Sequence[Sequence[int]], start: Sizes, *, limit: int, noise: float
    ) -> None:
        self._grid = [Sizes(threshold, bucket) for threshold in axes[0] for bucket in axes[1]]
        places = [[index / max(1, len(axis) - 1) for index in range(len(axis))] for axis in axes]
        self._places = np.array([(one, two) for one in places[0] for two in places[1]])
        self._limit, self._noise = limit, noise
        self._start = self._grid.index(start)
        self._scores: dict[int, float] = {}

    def ask(self) -> Sizes | None:
        """The next point; None when enough are tried. The first one is where we are."""
        if not self._scores:
            return self._grid[self._start]
        left = [index for index in range(len(self._grid)) if index not in self._scores]
        if not left or len(self._scores) >= self._limit:
            return None
        tried = list(self._scores)
        promise = expected_improvement(
            self._places[tried],
            np.array(list(self._scores.values())),
            self._places[left],
            self._noise,
        )
        return self._grid[left[int(np.argmax(promise))]]

    def tell(self, point: Sizes, score: float) -> None:
        self._scores[self._grid.index(point)] = score

    def best(self) -> Sizes:
        return self._grid[max(self._scores, key=lambda index: self._scores[index])]


def expected_improvement(tried: Array, scores: Array, candidates: Array, noise: float) -> Array:
    """How much better than the best score each candidate may be. Rows are points with coordinates
    from 0 to 1.
    """
    spread = float(scores.std()) or 1.0
    values = (scores - scores.mean()) / spread
    weights = _alike(tried, tried) + (noise**2 + 1e-6) * np.eye(len(tried))
    near = _alike(candidates, tried)
    mean = near @ np.linalg.solve(weights, values)
    variance = 1.0 - np.einsum("ij,ji->i", near, np.linalg.solve(weights, near.T))
    deviation = np.sqrt(np.maximum(variance, 1e-12))
    gap = mean - values.max()
    z = gap / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z])
    promise: Array = gap * below + deviation * density
    return promise


def _alike(one: Array, two: Array) -> Array:
    distances: Array = ((one[:, None, :] - two[None, :, :]) ** 2).sum(axis=2)
    return np.exp(-0.5 * distances / _REACH**2)


def better(challenger: Sequence[float], champion: Sequence[float]) -> bool:
    """Is the challenger clearly better? Scores taken by turns."""
    wins = sum(one > two for one, two in zip(challenger, champion, strict=True))
    return wins >= 0.8 * len(champion) and median(challenger) > GAIN * median(champion)


def axis(values: Sequence[int], start: int, most: float) -> list[int]:
    """The values to try: none that amounts to the same as a smaller one, which is already more than
    ``most``.
    """
    useful = [value for value in values if value < most] + [
        value for value in values if value >= most
    ][:1]
    return sorted({*useful, start})


class Tuning:
    """The course of a tuning: ``run`` yields a point and is sent a sample of it, again and again.
    Pure.
    """

    def __init__(
        self,
        start: Sizes,
        settings: Settings,
        *,
        thresholds: bool,
        buckets: bool,
        log: TextIO | None = None,
    ) -> None:
        self._start, self._settings = start, settings
        self._thresholds, self._buckets = thresholds, buckets
        self._log = log
        if log is not None and not log.tell():
            self._say("cycle_time_ms,tensor_fusion_threshold,bucket_bytes,score")

    def run(self) -> Generator[Sizes, Sample, Sizes]:
        """Returns the point to stay with."""
        start, settings = self._start, self._settings
        last = yield start  # the first one tells how much is exchanged
        for _ in range(settings.autotune_warmup_samples - 1):
            last = yield start
        axes = [
            (
                axis(THRESHOLDS, start.fusion_threshold, last.step_bytes)
                if self._thresholds
                else [start.fusion_threshold]
            ),
            (
                axis(BUCKETS, start.bucket_bytes, last.step_bytes)
                if self._buckets
                else [start.bucket_bytes]
            ),
        ]
        search = Search(
            axes,
            start,
            limit=settings.autotune_bayes_opt_max_samples,
            noise=settings.autotune_gaussian_process_noise,
        )
        while (point := search.ask()) is not None:
            scores = []
            for _ in range(SAMPLES):
                scores.append((yield point).score)
            search.tell(point, median(scores))
            self._row(point, median(scores))
        return (yield from self._duel(search.best()))

    def _duel(self, challenger: Sizes) -> Generator[Sizes, Sample, Sizes]:
        """The start and the challenger by turns: what both suffer from counts for neither."""
        champion = self._start
        if challenger == champion:
            scores = []
            for _ in range(SAMPLES):
                scores.append((yield champion).score)
            self._row(champion, median(scores))
            return champion
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(SAMPLES):
            ours.append((yield champion).score)
            theirs.append((yield challenger).score)
        winner, score = (
            (challenger, median(theirs)) if better(theirs, ours) else (champion, median(ours))
        )
        self._row(winner, score)
        return winner

    def _row(self, point: Sizes, score: float) -> None:
        sizes = f"{point.fusion_threshold},{point.bucket_bytes}"
        self._say(f"{self._settings.cycle_time:g},{sizes},{score:.6g}")

    def _say(self, line: str) -> None:
        if self._log is None:
            return
        try:
            self._log.write(line + "\n")
            self._log.flush()
        except OSError as error:  # a full disk ends the log, not the training
            logger.warning(
                "the log of autotune ends here: it cannot be written any more: %s", error.strerror
            )
            self._log = None


class Tuner(Observer):
    """Observes rank 0's engine. Sizes that were set to something else than the default are not
    tuned.
    """

    def __init__(self, settings: Settings, *, on: bool = False) -> None:
        """``on``: go on with the log that is there. Raises SettingsError if it cannot be
        written.
        """
        self._settings = settings
        self._log = _open(settings.autotune_log, on=on)
        self._run: Generator[Sizes, Sample, Sizes] | None = None
        self._point = Sizes(settings.fusion_threshold, settings.bucket_bytes)
        self.done = False
        self._seen: set[str] = set()
        self._steps = 0
        self._bytes = 0
        self._begin: float | None = None  # of the sample

    def attach(self, engine: Tuned) -> None:
        """Before anything runs."""
        self._engine = engine

    def started(self, kind: Kind, names: Sequence[str], nbytes: int) -> None:
        if self.done:
            return
        keys = [_key(name, nbytes) for name in names]
        if not self._seen.isdisjoint(keys):  # a tensor comes again: that is another step
            self._seen.clear()
            self._step()
        self._seen.update(keys)
        self._bytes += nbytes

    def close(self) -> None:
        self.done = True
        if self._log is not None:
            with contextlib.suppress(OSError):  # what could not be written before cannot now
                self._log.close()
            self._log = None

    def _step(self) -> None:
        now = monotonic()
        if self._begin is None:
            if self._in_force():
                self._begin, self._steps, self._bytes = now, 0, 0
            return
        self._steps += 1
        seconds = now - self._begin
        if self._steps < self._settings.autotune_steps_per_sample or seconds < SHORTEST:
            return
        sample = Sample(self._bytes / (seconds * 1e6), self._bytes / self._steps)
        self._begin, self._steps, self._bytes = now, 0, 0
        self._take(sample)

    def _in_force(self) -> bool:
        engine, point = self._engine, self._point
        return engine.sizes == point and engine.bucketed in (None, point.bucket_bytes)

    def _take(self, sample: Sample) -> None:
        try:
            if self._run is None:
                self._run = self._tuning().run()
                next(self._run)
            point = self._run.send(sample)
        except StopIteration as end:
            point = end.value
            logger.info("autotune: fusion threshold %d bytes, buckets of %d bytes", *point)
            self.close()
        if point != self._point:
            self._point, self._begin = point, None
            self._engine.propose(point)

    def _tuning(self) -> Tuning:
        """Begun with the first sample: strategies have laid out their buckets by then."""
        settings, usual = self._settings, Settings()
        thresholds = settings.fusion_threshold == usual.fusion_threshold
        buckets = settings.bucket_bytes == usual.bucket_bytes and self._engine.bucketed is not None
        return Tuning(self._point, settings, thresholds=thresholds, buckets=buckets, log=self._log)


def _key(name: str, nbytes: int) -> str:
    """Unnamed collectives are numbered; those of a step are told apart by their size instead."""
    head, _, tail = name.rpartition(".")
    return f"{head}/{nbytes}" if head.endswith("noname") and tail.isdigit() else name


def _open(path: str, *, on: bool) -> TextIO | None:
    if not path:
        return None
    from farandole.core.observe.timeline.file import claim

    try:
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (the caller's)
    except OSError as error:
        raise SettingsError(
            f"--autotune-log-file={path!r} (HOROVOD_AUTOTUNE_LOG) cannot be written:"
            f" {error.strerror}; it must name a file in a directory that exists and can be written"
        ) from error
    if not claim(file.fileno(), os.fstat(file.fileno()).st_size if on else 0):
        file.close()
        raise SettingsError(
            f"--autotune-log-file={path!r} (HOROVOD_AUTOTUNE_LOG) cannot be written: another job"
            " writes its own there; each job needs a file of its own"
        )
    return file
