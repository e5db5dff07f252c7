"""Journals of metrics as columns: new records, damage, attempts, several readers."""

from __future__ import annotations

import math
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.journal import encode
from farandole.job.tracking.tracker import SYSTEM, Tracker
from farandole.jobs import column_cache, metrics
from farandole.jobs.column_cache import forget
from farandole.jobs.metrics import columns


@pytest.fixture
def run(home: RunsHome) -> RunFolder:
    return RunFolder(os.path.join(home.runs, "e", "e_1_00000000"))


def track(run: RunFolder, attempt: int = 1, rank: int = 0) -> Tracker:
    run.folder("metrics")
    return Tracker(run, rank, attempt)


def steps_and_values(run: RunFolder, name: str, rank: int = 0) -> list[tuple[int, float]]:
    steps, times, values = metrics.series(run, name, rank)
    assert len(times) == len(steps) == len(values)
    return list(zip(steps.tolist(), values.tolist(), strict=True))


def test_a_run_without_metrics_has_none(run: RunFolder) -> None:
    assert metrics.ranks(run) == []
    assert metrics.names(run) == []
    assert metrics.last_values(run) == {}
    assert steps_and_values(run, "loss") == []
    assert metrics.params(run) == {}


def test_new_records_are_added(run: RunFolder) -> None:
    tracker = track(run)
    tracker.scalars({"loss": 1.0, "accuracy": 0.0}, 0)
    assert steps_and_values(run, "loss") == [(0, 1.0)]
    tracker.scalars({"loss": 0.5}, 10)
    tracker.scalars({"late": math.inf})
    assert steps_and_values(run, "loss") == [(0, 1.0), (10, 0.5)]
    assert steps_and_values(run, "late") == [(0, math.inf)]
    assert metrics.names(run) == ["accuracy", "late", "loss"]
    assert metrics.last_values(run) == {"accuracy": 0.0, "late": math.inf, "loss": 0.5}


def test_each_rank_has_its_own_series(run: RunFolder) -> None:
    for rank in (10, 2):
        track(run, rank=rank).scalars({"loss": float(rank)})
    assert metrics.ranks(run) == [2, 10]
    assert steps_and_values(run, "loss", 10) == [(0, 10.0)]
    assert steps_and_values(run, "loss") == []


def test_automatic_metrics_are_apart(run: RunFolder) -> None:
    tracker = track(run)
    tracker.record(SYSTEM, values={"system/memory": 7})
    tracker.record(SYSTEM, values={"system/memory": 8})
    tracker.scalars({"loss": 1.0})
    assert metrics.names(run) == ["loss"]
    assert metrics.names(run, automatic=True) == ["system/memory"]
    assert metrics.last_values(run, automatic=True) == {"system/memory": 8}
    assert steps_and_values(run, "system/memory") == [(0, 7.0), (1, 8.0)]


def test_other_records_are_kept(run: RunFolder) -> None:
    tracker = track(run)
    tracker.record("params", values={"lr": 0.1, "n": 1})
    tracker.record("params", values={"lr": 0.2})
    tracker.record("table", name="t", columns=["a", "b"], rows=[[1, "x"]])
    tracker.record("table", name="t", columns=["b"], rows=[["y"]])
    assert metrics.params(run) == {"lr": 0.2, "n": 1}
    assert metrics.tables(run) == {"t": [{"a": 1, "b": "x"}, {"b": "y"}]}
    assert [each["pid"] for each in metrics.logged(run, "process")] == [os.getpid()]


def append(run: RunFolder, data: bytes) -> None:
    with open(run.metrics_of(0), "ab") as file:
        file.write(data)


def test_torn_and_damaged_records_are_left_out(run: RunFolder) -> None:
    tracker = track(run)
    tracker.scalars({"loss": 1.0}, 0)
    line = encode({"step": 1, "time": 0.0, "values": {"loss": 0.5}})
    append(run, line[:20])
    assert steps_and_values(run, "loss") == [(0, 1.0)]
    append(run, line[20:])
    append(run, line.replace(b"0.5", b"0.7"))
    append(run, b"\n\x00\xff not a record\n")
    for strange in ([1], {"values": 3}, {"values": {"loss": "x"}}, {"values": {"loss": 1}}):
        append(run, encode(strange))
    tracker.scalars({"loss": 0.25}, 2)
    assert steps_and_values(run, "loss") == [(0, 1.0), (1, 0.5), (2, 0.25)]


def test_a_later_attempt_replaces_the_steps_it_repeats(run: RunFolder) -> None:
    first, second, third = (track(run, attempt) for attempt in (1, 2, 3))
    for step in range(6):
        first.scalars({"loss": step}, step)
    for step in (3, 4, 5):
        second.scalars({"loss": 10 + step}, step)
    first.scalars({"loss": 6}, 6)  # its process ends late
    assert steps_and_values(run, "loss") == [(0, 0), (1, 1), (2, 2), (3, 13), (4, 14), (5, 15)]
    for step in (5, 6):
        third.scalars({"loss": 20 + step}, step)
    second.scalars({"loss": 16}, 6)
    found = steps_and_values(run, "loss")
    assert found == [(0, 0), (1, 1), (2, 2), (3, 13), (4, 14), (5, 25), (6, 26)]


def test_another_journal_at_this_place_is_read_from_its_start(run: RunFolder) -> None:
    for step in range(20):
        track(run).scalars({"loss": 1.0}, step)
    assert len(steps_and_values(run, "loss")) == 20
    os.unlink(run.metrics_of(0))
    track(run).scalars({"other": 2.0}, 5)
    assert metrics.names(run) == ["other"]
    os.unlink(run.metrics_of(0))
    assert metrics.names(run) == []


def test_lost_columns_are_made_again(run: RunFolder) -> None:
    track(run).scalars({"loss": 1.0}, 0)
    assert steps_and_values(run, "loss") == [(0, 1.0)]
    place = columns._place(run, 0)
    for path in Path(place).glob("*.bin"):
        path.unlink()
    assert steps_and_values(run, "loss") == [(0, 1.0)]
    forget(run)
    assert not os.path.exists(os.path.dirname(place))
    assert steps_and_values(run, "loss") == [(0, 1.0)]


def test_a_moved_folder_is_read_at_its_new_place(run: RunFolder, tmp_path: Path) -> None:
    track(run).scalars({"loss": 1.0}, 0)
    assert steps_and_values(run, "loss") == [(0, 1.0)]
    moved = RunFolder(str(shutil.copytree(run.path, tmp_path / "copy")))
    track(moved).scalars({"loss": 2.0}, 1)
    assert steps_and_values(moved, "loss") == [(0, 1.0), (1, 2.0)]
    assert steps_and_values(run, "loss") == [(0, 1.0)]


def test_a_state_folder_that_is_not_writable_is_no_obstacle(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> str:
        raise PermissionError(13, "no")

    monkeypatch.setattr(column_cache, "state_folder", refuse)
    track(run).scalars({"loss": 1.0}, 0)
    assert steps_and_values(run, "loss") == [(0, 1.0)]


def test_a_killed_conversion_is_completed(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = track(run)
    tracker.scalars({"loss": 1.0}, 0)
    assert len(steps_and_values(run, "loss")) == 1
    tracker.scalars({"loss": 0.5}, 1)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(columns, "_write_index", die)
        with pytest.raises(KeyboardInterrupt):
            metrics.names(run)
    tracker.scalars({"loss": 0.25}, 2)
    assert steps_and_values(run, "loss") == [(0, 1.0), (1, 0.5), (2, 0.25)]


def test_readers_and_a_writer_work_concurrently(run: RunFolder) -> None:
    tracker = track(run)

    def read(_: int) -> bool:
        found = steps_and_values(run, "loss")
        return found == [(step, float(step)) for step in range(len(found))]

    with ThreadPoolExecutor(4) as pool:
        answers = []
        for step in range(200):
            tracker.scalars({"loss": float(step)}, step)
            answers.append(pool.submit(read, step))
    assert all(answer.result() for answer in answers)
    assert len(steps_and_values(run, "loss")) == 200
