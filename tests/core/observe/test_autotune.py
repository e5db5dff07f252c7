"""Autotune finds faster sizes, keeps sizes that are not clearly beaten, and changes all ranks in
the same round.
"""

from __future__ import annotations

import csv
import io
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import Observer
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request, Sizes
from farandole.core.engine import Engine, Entry, wire
from farandole.core.observe import autotune
from farandole.core.observe.autotune import (
    Sample,
    Tuner,
    Tuning,
    axis,
    better,
    search,
)
from farandole.errors import SettingsError
from farandole.job.config import Settings
from tests.kits.messages import mentioning, mentions
from tests.pool import procs, ranks

MB = 1 << 20
START = Sizes(64 * MB, 8 * MB)
STEP = 16 * MB  # bytes exchanged in a step


def tuner_of(engine: Any, settings: Settings) -> Tuner:
    tuner = Tuner(settings)
    tuner.attach(engine)
    return tuner


def course(
    score: Callable[[Sizes], float],
    *,
    thresholds: bool = True,
    buckets: bool = True,
    **settings: Any,
) -> tuple[Sizes, list[dict[str, str]], list[Sizes]]:
    """Tune with scores from a function. Returns the winner, the log and every measured point."""
    log = io.StringIO()
    run = Tuning(START, Settings(**settings), thresholds=thresholds, buckets=buckets, log=log).run()
    point = next(run)
    measured = [point]
    while True:
        try:
            point = run.send(Sample(score(point), STEP))
        except StopIteration as end:
            return end.value, list(csv.DictReader(log.getvalue().splitlines())), measured
        measured.append(point)


def noisy(noise: float, best: Sizes, gain: float, seed: int) -> Callable[[Sizes], float]:
    """Return a score of 1 at the start, up to ``gain`` at ``best``, that decreases with the
    logarithm of the distance.
    """
    rolls = random.Random(seed)

    def score(point: Sizes) -> float:
        far = sum(
            abs(np.log2(max(one, 1 << 17) / max(two, 1 << 17)))
            for one, two in zip(point, best, strict=True)
        )
        start = sum(
            abs(np.log2(max(one, 1 << 17) / max(two, 1 << 17)))
            for one, two in zip(START, best, strict=True)
        )
        return (1 + (gain - 1) * (start - far) / max(start, 1)) * rolls.gauss(1, noise)

    return score


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("best", [Sizes(MB, 2 * MB), Sizes(0, MB), Sizes(4 * MB, 16 * MB)])
def test_it_finds_what_is_clearly_faster(best: Sizes, seed: int) -> None:
    score = noisy(0.02, best, 1.5, seed)
    winner, _, _ = course(score)
    quiet = noisy(0.0, best, 1.5, 0)
    assert quiet(winner) > 1.3


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_autotune_keeps_the_start_when_sizes_do_not_matter(noise: float) -> None:
    kept = [course(noisy(noise, START, 1.0, seed))[0] == START for seed in range(40)]
    assert sum(kept) >= 36


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_the_choice_is_not_slower_than_the_start(noise: float) -> None:
    quiet = noisy(0.0, START, 2.0, 0)  # everything else is slower
    for seed in range(30):
        winner, _, _ = course(noisy(noise, START, 2.0, seed))
        assert quiet(winner) >= 0.95


def test_the_log_ends_with_the_best() -> None:
    winner, rows, measured = course(noisy(0.0, Sizes(MB, 2 * MB), 1.5, 0), cycle_time=2.5)
    assert list(rows[0]) == ["cycle_time_ms", "tensor_fusion_threshold", "bucket_bytes", "score"]
    assert {row["cycle_time_ms"] for row in rows} == {"2.5"}
    points = [Sizes(int(row["tensor_fusion_threshold"]), int(row["bucket_bytes"])) for row in rows]
    assert points[0] == START
    assert points[-1] == winner
    assert len(set(points[:-1])) == len(points) - 1 <= 20  # each tried once, as many as allowed
    assert float(rows[-1]["score"]) == max(float(row["score"]) for row in rows)
    assert set(measured) == set(points)


def test_autotune_takes_the_set_number_of_samples() -> None:
    settings = {"autotune_warmup_samples": 2, "autotune_bayes_opt_max_samples": 4}
    _, rows, measured = course(noisy(0.0, Sizes(MB, 2 * MB), 1.5, 0), **settings)
    assert len(rows) == 4 + 1
    assert measured[:2] == [START, START]
    assert len(measured) == 2 + 4 * autotune.SAMPLES + 2 * autotune.SAMPLES


def test_autotune_leaves_fixed_sizes() -> None:
    score = noisy(0.0, Sizes(MB, 2 * MB), 1.5, 0)
    assert {point.bucket_bytes for point in course(score, buckets=False)[2]} == {START.bucket_bytes}
    assert {point.fusion_threshold for point in course(score, thresholds=False)[2]} == {
        START.fusion_threshold
    }
    winner, rows, _ = course(score, thresholds=False, buckets=False)
    assert winner == START
    assert len(rows) == 2


def test_sizes_beyond_a_step_are_not_tried() -> None:
    assert axis([0, 1, 2, 4, 8, 16], 2, 3.0) == [0, 1, 2, 4]
    assert axis([1, 2, 4], 64, 100.0) == [1, 2, 4, 64]
    assert axis([1, 2, 4], 3, 0.5) == [1, 3]


def searched(
    axes: tuple[list[int], list[int]], start: Sizes, limit: int, score: Callable[[Sizes], float]
) -> tuple[Sizes, list[Sizes]]:
    """Return the best point of a search and the points that it tried."""
    points = search(*axes, start, limit)
    tried = [next(points)]
    while True:
        try:
            tried.append(points.send(score(tried[-1])))
        except StopIteration as end:
            return end.value, tried


def test_the_search_tries_each_axis_outwards_from_the_best() -> None:
    best, tried = searched(([1, 2, 4], [1, 2]), Sizes(2, 2), 20, lambda at: at[0] - 10 * at[1])
    assert best == Sizes(4, 1)
    assert tried == [Sizes(2, 2), Sizes(2, 1), Sizes(1, 1), Sizes(4, 1), Sizes(4, 2)]


def test_the_search_ends_when_everything_was_tried() -> None:
    axes = [1, 2], [3]
    assert searched(axes, Sizes(2, 3), 20, lambda at: at[0]) == (
        Sizes(2, 3),
        [Sizes(2, 3), Sizes(1, 3)],
    )


def test_the_search_tries_no_more_than_its_limit() -> None:
    axes = [1, 2, 4, 8], [1, 2, 4, 8]
    best, tried = searched(axes, Sizes(1, 1), 3, lambda at: at[1])
    assert tried == [Sizes(1, 1), Sizes(1, 2), Sizes(1, 4)]
    assert best == Sizes(1, 4)


@pytest.mark.parametrize(
    "best", [Sizes(a, b) for a in (0, 256 << 10, MB, 16 * MB) for b in (MB, 16 * MB)]
)
def test_the_search_finds_any_corner_of_the_grid(best: Sizes) -> None:
    axes = axis(autotune.THRESHOLDS, 64 * MB, STEP), axis(autotune.BUCKETS, 8 * MB, STEP)
    found, tried = searched(axes, START, 20, noisy(0.0, best, 1.5, 0))
    assert found == best
    assert len(tried) == len(set(tried)) <= 20


@pytest.mark.parametrize(
    ("challenger", "champion", "wins"),
    [
        ([1.1] * 5, [1.0] * 5, True),
        ([1.01] * 5, [1.0] * 5, False),  # not by enough
        ([2.0, 2.0, 2.0, 0.9, 0.9], [1.0] * 5, False),  # not often enough
        ([2.0, 2.0, 2.0, 2.0, 0.9], [1.0] * 5, True),
    ],
)
def test_a_challenger_must_be_clearly_better(
    challenger: list[float], champion: list[float], wins: bool
) -> None:
    assert better(challenger, champion) is wins


# The tuner, by a clock of our own.


class Car:
    """An engine whose steps take ``seconds(threshold, bucket)``."""

    def __init__(self, clock: list[float]) -> None:
        self.sizes = Sizes(64 * MB, 8 * MB)
        self.bucketed: int | None = None
        self.proposed: list[Sizes] = []
        self.clock = clock

    def propose(self, sizes: Sizes) -> None:
        self.proposed.append(sizes)

    def drive(
        self, tuner: Tuner, seconds: Callable[[int, int], float], steps: int, delay: int = 2
    ) -> None:
        for step in range(steps):
            if self.proposed and step % delay == 0:  # it takes a while until all ranks have obeyed
                self.sizes = self.proposed.pop()
                self.proposed.clear()
            if self.bucketed is not None and step % delay == 0:
                self.bucketed = self.sizes.bucket_bytes
            for name in ("a", "b"):
                self.clock[0] += seconds(self.sizes.fusion_threshold, self.bucketed or 8 * MB) / 2
                tuner.started(Kind.ALLREDUCE, [name], STEP // 2)
                tuner.finished(Kind.ALLREDUCE, [name])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(autotune, "monotonic", lambda: now[0])
    return now


def test_thresholds_are_tuned_and_buckets_left_alone(clock: list[float], tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    car = Car(clock)
    tuner = tuner_of(car, Settings(autotune_log=str(path)))
    car.drive(tuner, lambda threshold, _: 0.010 if threshold == 2 * MB else 0.020, 5000)
    assert tuner.done
    assert car.sizes == Sizes(2 * MB, 8 * MB)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert rows[-1]["tensor_fusion_threshold"] == str(2 * MB)
    assert float(rows[-1]["score"]) == pytest.approx(STEP / 10_000)  # bytes per microsecond
    assert float(rows[0]["score"]) == pytest.approx(STEP / 20_000)


def test_buckets_are_tuned_when_a_strategy_can_change_them(clock: list[float]) -> None:
    car = Car(clock)
    car.bucketed = 8 * MB
    car.sizes = Sizes(4 * MB, 8 * MB)
    tuner = tuner_of(car, Settings(fusion_threshold=4 * MB))  # set by the user: stays
    car.drive(tuner, lambda _, bucket: 0.010 if bucket == 2 * MB else 0.020, 5000)
    assert tuner.done
    assert (car.sizes.fusion_threshold, car.bucketed) == (4 * MB, 2 * MB)


def test_unnamed_collectives_make_steps_too(clock: list[float]) -> None:
    car = Car(clock)
    tuner = tuner_of(car, Settings(autotune_steps_per_sample=2, autotune_warmup_samples=1))
    for serial in range(4000):
        if car.proposed:
            car.sizes = car.proposed.pop()
        clock[0] += 0.02
        tuner.started(Kind.ALLREDUCE, [f"allreduce.noname.{serial}"], 1000 + serial % 2)
    assert tuner.done
    assert car.sizes.fusion_threshold == 64 * MB


@pytest.mark.parametrize(("steps", "reported"), [(300, True), (5000, False)])
def test_a_job_that_is_too_short_is_reported(
    steps: int, reported: bool, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    car = Car(clock)
    tuner = tuner_of(car, Settings())
    car.drive(tuner, lambda *_: 0.010, steps)
    assert tuner.done != reported
    tuner.close()
    assert mentions(caplog.text, "--autotune-bayes-opt-max-samples") == reported


def test_a_log_that_cannot_be_written_is_named() -> None:
    with pytest.raises(
        SettingsError, match=mentioning("--autotune-log-file", "'/nowhere/log.csv'")
    ):
        Tuner(Settings(autotune_log="/nowhere/log.csv"))


LOGS = """
import sys, time
from farandole.job.config import Settings
from farandole.core.observe.autotune import Tuner
tuner = Tuner(Settings(autotune_log=sys.argv[1]))
print("go", flush=True)
time.sleep(600)
"""


def test_a_log_continues_where_an_earlier_part_of_the_job_ended(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for on, text in (False, ""), (True, "rows\n"), (False, ""):
        path.write_text("rows\n")
        tuner = Tuner(Settings(autotune_log=str(path)), on=on)
        tuner.close()
        assert path.read_text() == text
    log = io.StringIO()
    for _ in range(2):
        Tuning(START, Settings(), thresholds=True, buckets=False, log=log)
    assert log.getvalue().count("score") == 1


def test_a_log_that_another_job_writes_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("of yesterday\n")
    with subprocess.Popen([sys.executable, "-c", LOGS, str(path)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"go\n"
            assert path.read_text() == ""
            path.write_text("its own\n")
            with pytest.raises(
                SettingsError,
                match=mentioning("log.csv"),
            ):
                Tuner(Settings(autotune_log=str(path)))
        finally:
            other.kill()
    assert path.read_text() == "its own\n"


def test_a_full_disk_ends_the_log_not_the_training(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    car = Car(clock)
    tuner = tuner_of(car, Settings(autotune_log="/dev/full"))
    with caplog.at_level("WARNING", "farandole"):
        car.drive(tuner, lambda threshold, _: 0.010 if threshold == 2 * MB else 0.020, 5000)
    assert tuner.done
    assert car.sizes == Sizes(2 * MB, 8 * MB)
    (record,) = caplog.records
    assert mentions(record.getMessage(), "autotune", "No space")


# With the engine.


def entry(name: str, array: np.ndarray) -> Entry:
    request = Request(name, Kind.ALLREDUCE, DType(str(array.dtype)), array.shape, ReduceOp.SUM)
    return Entry(request, Buffer(array, array, request.dtype))


class Units(Observer):
    """An observer that records the fused units and their threshold."""

    def __init__(self) -> None:
        self.ran: list[tuple[tuple[str, ...], int]] = []
        self.engine: Engine | None = None

    def started(self, kind: Kind, names: list[str], nbytes: int) -> None:
        assert self.engine is not None
        self.ran.append((tuple(names), self.engine.sizes.fusion_threshold))

    def finished(self, kind: Kind, names: list[str]) -> None: ...


@pytest.mark.parametrize("n", [1, 2, 3])
def test_all_ranks_change_in_the_same_round(n: int) -> None:
    thresholds = [0, 1 << 20, 40, 100, 0, 64 << 20]

    def body(transport: Any) -> Any:
        units = Units()
        engine = units.engine = Engine(transport, Settings(), [units])
        rolls = random.Random(engine.rank)
        for step in range(60):
            if step % 10 == 5 and engine.rank == 0:
                engine.propose(engine.sizes._replace(fusion_threshold=thresholds[step // 10]))
            if step % 10 == 7 and engine.rank == n - 1 > 0:
                engine.propose(Sizes(12345, 1))  # no rank listens to this one
            arrays = {f"t{i}": np.full(10, i + step, np.float32) for i in range(8)}
            order = rolls.sample(sorted(arrays), 8) if step % 3 else sorted(arrays)
            for handle in [engine.submit([entry(name, arrays[name])]) for name in order]:
                handle.wait()
            assert all(np.all(arrays[f"t{i}"] == n * (i + step)) for i in range(8))
        engine.run([entry("last", np.zeros(1, np.float32))])
        assert engine.sizes.fusion_threshold == thresholds[-1]
        engine.shutdown()
        return units.ran

    results = ranks(n, body)
    assert all(result == results[0] for result in results)
    assert {threshold for _, threshold in results[0]} == {*thresholds}
    assert max(len(names) for names, threshold in results[0] if threshold == 0) == 1
    assert max(len(names) for names, threshold in results[0] if threshold == 100) <= 2


def test_a_message_comes_back_as_it_was_with_its_note() -> None:
    request = Request("a", Kind.ALLREDUCE, DType.FLOAT32, (2,))
    for message in (wire.encode([(3, 0), (4, 9)], []), wire.encode([(1, 2)], [(request, 0)])):
        for note in (
            wire.Note(None, []),
            wire.Note(Sizes(0, 8), []),
            wire.Note(Sizes(1 << 40, 1 << 20), [1.5, 2.25, 3.0]),
        ):
            noted = wire.with_note(message, note)
            assert wire.noted(noted)
            assert not wire.noted(message)
            assert wire.without_note(noted) == (message, note)
        assert wire.without_note(message) == (message, wire.Note(None, []))
    assert not wire.noted(b"")


def test_a_job_is_tuned_while_it_runs(tmp_path: Path) -> None:
    log = str(tmp_path / "log.csv")

    def body(transport: Any) -> Any:
        settings = Settings(
            autotune_steps_per_sample=2,
            autotune_warmup_samples=1,
            autotune_bayes_opt_max_samples=3,
            autotune_log=log,
        )
        engine = Engine(transport, settings)
        tuner = tuner_of(engine, settings) if engine.rank == 0 else None
        if tuner is not None:
            engine.observers.add(tuner)
        arrays = [np.ones(1000, np.float32) for _ in range(4)]
        flag = np.zeros(1, np.float32)
        deadline = time.monotonic() + 60
        while not flag[0] and time.monotonic() < deadline:
            for handle in [
                engine.submit([entry(f"t{i}", array)]) for i, array in enumerate(arrays)
            ]:
                handle.wait()
            flag[0] = tuner is not None and tuner.done
            engine.run([entry("flag", flag)])
        engine.run([entry("last", np.zeros(1, np.float32))])
        threshold = engine.sizes.fusion_threshold
        engine.shutdown()
        return bool(flag[0]), threshold

    results = procs(2, body)
    rows = list(csv.DictReader(Path(log).read_text().splitlines()))
    assert results == [(True, int(rows[-1]["tensor_fusion_threshold"]))] * 2
    assert len(rows) == 3 + 1 or len(rows) == 2 + 1  # few sizes make sense for 16 kB
    assert median(float(row["score"]) for row in rows) > 0
