"""Autotune: tries exchange sizes during training and keeps the fastest.

Rank 0 measures and decides; its decisions are attached to its messages, so all ranks adopt them in
the same round. A coordinate search over a grid of sizes finds the best one. It must beat the
initial sizes in a duel; otherwise the initial sizes are kept.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Sequence
from statistics import median
from time import monotonic
from typing import NamedTuple, Protocol, TextIO

from farandole.base.contracts import Observer
from farandole.base.log import logger
from farandole.base.types import Kind, Sizes
from farandole.errors import SettingsError
from farandole.job.config import Settings

SAMPLES = 5  # samples per size; the median counts
GAIN = 1.02  # factor by which a challenger must be better to replace the initial sizes
SHORTEST = 0.02  # least duration of a sample in seconds
THRESHOLDS = [0, *(1 << power for power in range(18, 28))]  # 0, 256 KiB, ... 128 MiB
BUCKETS = [1 << power for power in range(20, 27)]  # 1 MiB ... 64 MiB


class Sample(NamedTuple):
    """One measurement. ``score``: bytes exchanged per microsecond of training; ``step_bytes``:
    bytes exchanged in a step.
    """

    score: float
    step_bytes: float


class TunableEngine(Protocol):
    """The tuner's view of an engine.

    A strategy that can change the size of its buckets lays them out with rank 0's ``sizes`` on all
    ranks, and stores the size in ``bucketed``. While that is None, buckets are not tuned.
    """

    bucketed: int | None

    @property
    def sizes(self) -> Sizes: ...

    def propose(self, sizes: Sizes) -> None: ...


def search(
    thresholds: Sequence[int], buckets: Sequence[int], start: Sizes, limit: int
) -> Generator[Sizes, float, Sizes]:
    """Find the best point of a grid, axis by axis: yield a point, receive its score. Pure.

    All values of one axis are tried with the best value of the other axis, alternately, until
    neither changes. Buckets come first: they carry an optimizer's gradients. Each point is tried
    once, up to ``limit`` points.
    """
    scores = {start: (yield start)}
    best, before = start, None
    while best != before:
        before = best
        nearest = _outwards(buckets, best.bucket_bytes)
        points = [Sizes(best.fusion_threshold, bucket) for bucket in nearest]
        best = yield from _best_of(points, scores, limit)
        nearest = _outwards(thresholds, best.fusion_threshold)
        points = [Sizes(threshold, best.bucket_bytes) for threshold in nearest]
        best = yield from _best_of(points, scores, limit)
    return best


def _best_of(
    points: Sequence[Sizes], scores: dict[Sizes, float], limit: int
) -> Generator[Sizes, float, Sizes]:
    for point in points:
        if point not in scores and len(scores) < limit:
            scores[point] = yield point
    return max(scores, key=lambda point: scores[point])


def _outwards(values: Sequence[int], start: int) -> list[int]:
    """Return the values of an axis, the nearest to ``start`` first."""
    middle = values.index(start)
    return sorted(values, key=lambda value: abs(values.index(value) - middle))


def better(challenger: Sequence[float], champion: Sequence[float]) -> bool:
    """Return whether the challenger is clearly better, given scores measured alternately."""
    wins = sum(one > two for one, two in zip(challenger, champion, strict=True))
    return wins >= 0.8 * len(champion) and median(challenger) > GAIN * median(champion)


def axis(values: Sequence[int], start: int, most: float) -> list[int]:
    """Return the values to try. All values above ``most`` have the same effect, so only the
    smallest of them is included.
    """
    useful = [value for value in values if value < most] + [
        value for value in values if value >= most
    ][:1]
    return sorted({*useful, start})


class Tuning:
    """The course of a tuning: ``run`` repeatedly yields a point and receives a sample of it.
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
        self._start = start
        self._settings = settings
        self._thresholds = thresholds
        self._buckets = buckets
        self._log = log
        if log is not None and not log.tell():
            self._write("cycle_time_ms,tensor_fusion_threshold,bucket_bytes,score")

    def run(self) -> Generator[Sizes, Sample, Sizes]:
        """Run the search and the duel. Return the point to keep."""
        start, settings = self._start, self._settings
        last = yield start  # the first sample shows how much is exchanged
        for _ in range(settings.autotune_warmup_samples - 1):
            last = yield start
        thresholds, buckets = [start.fusion_threshold], [start.bucket_bytes]
        if self._thresholds:
            thresholds = axis(THRESHOLDS, start.fusion_threshold, last.step_bytes)
        if self._buckets:
            buckets = axis(BUCKETS, start.bucket_bytes, last.step_bytes)
        best = yield from self._measured(
            search(thresholds, buckets, start, settings.autotune_bayes_opt_max_samples)
        )
        return (yield from self._duel(best))

    def _measured(self, points: Generator[Sizes, float, Sizes]) -> Generator[Sizes, Sample, Sizes]:
        """Answer a search with the median score of each of its points."""
        point = next(points)
        while True:
            scores = []
            for _ in range(SAMPLES):
                scores.append((yield point).score)
            self._row(point, median(scores))
            try:
                point = points.send(median(scores))
            except StopIteration as end:
                best: Sizes = end.value
                return best

    def _duel(self, challenger: Sizes) -> Generator[Sizes, Sample, Sizes]:
        """Measure the initial sizes and the challenger alternately, so that disturbances affect
        both.
        """
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
        self._write(f"{self._settings.cycle_time:g},{sizes},{score:.6g}")

    def _write(self, line: str) -> None:
        if self._log is None:
            return
        try:
            self._log.write(line + "\n")
            self._log.flush()
        except OSError as error:  # a full disk ends the log, but not the training
            logger.warning(
                "the autotune log ends here, because it can no longer be written: %s",
                error.strerror,
            )
            self._log = None


class Tuner(Observer):
    """Tunes the sizes from rank 0, by observing its engine. Sizes that the user has set are not
    tuned.
    """

    def __init__(self, settings: Settings, *, on: bool = False) -> None:
        """Open the log. ``on``: append to an existing one. Raises SettingsError if it cannot be
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

    def attach(self, engine: TunableEngine) -> None:
        """Attach to an engine, before any collective runs."""
        self._engine = engine

    def started(self, kind: Kind, names: Sequence[str], nbytes: int) -> None:
        if self.done:
            return
        keys = [_key(name, nbytes) for name in names]
        if not self._seen.isdisjoint(keys):  # a tensor is repeated: a new step
            self._seen.clear()
            self._step()
        self._seen.update(keys)
        self._bytes += nbytes

    def close(self) -> None:
        if not self.done and self._begin is not None:
            logger.warning(
                "autotune has not finished: the job was too short to find the fastest sizes."
                " Train for more steps, or lower --autotune-bayes-opt-max-samples"
                " (%d) or --autotune-steps-per-sample (%d)",
                self._settings.autotune_bayes_opt_max_samples,
                self._settings.autotune_steps_per_sample,
            )
        self.done = True
        if self._log is not None:
            with contextlib.suppress(OSError):  # an earlier write failed
                self._log.close()
            self._log = None

    def _step(self) -> None:
        now = monotonic()
        if self._begin is None:
            if self._in_force():
                self._begin_sample(now)
            return
        self._steps += 1
        seconds = now - self._begin
        if self._steps < self._settings.autotune_steps_per_sample or seconds < SHORTEST:
            return
        sample = Sample(self._bytes / (seconds * 1e6), self._bytes / self._steps)
        self._begin_sample(now)
        self._take(sample)

    def _begin_sample(self, now: float) -> None:
        self._begin = now
        self._steps = 0
        self._bytes = 0

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
            self.done = True
            self.close()
        if point != self._point:
            self._point = point
            self._begin = None
            self._engine.propose(point)

    def _tuning(self) -> Tuning:
        """Start the tuning with the first sample, after strategies have laid out their buckets."""
        settings, usual = self._settings, Settings()
        thresholds = settings.fusion_threshold == usual.fusion_threshold
        buckets = settings.bucket_bytes == usual.bucket_bytes and self._engine.bucketed is not None
        return Tuning(self._point, settings, thresholds=thresholds, buckets=buckets, log=self._log)


def _key(name: str, nbytes: int) -> str:
    """Return the key of a collective within a step: its name, or its size if it is unnamed."""
    head, _, tail = name.rpartition(".")
    return f"{head}/{nbytes}" if head.endswith("noname") and tail.isdigit() else name


def _open(path: str, *, on: bool) -> TextIO | None:
    if not path:
        return None
    from farandole.core.observe.timeline.file import claim

    try:
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (the caller closes it)
    except OSError as error:
        raise SettingsError(
            f"--autotune-log-file={path!r} (HOROVOD_AUTOTUNE_LOG) cannot be written:"
            f" {error.strerror}; name a file in an existing, writable directory"
        ) from error
    if not claim(file.fileno(), os.fstat(file.fileno()).st_size if on else 0):
        file.close()
        raise SettingsError(
            f"--autotune-log-file={path!r} (HOROVOD_AUTOTUNE_LOG) is in use by another job; use a"
            " separate file for each job"
        )
    return file
