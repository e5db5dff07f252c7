"""Events of a run while it is written."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from farandole.dashboard.server import events as module
from farandole.dashboard.server.events import RunWatch, events
from farandole.dashboard.server.rows import RunRows
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import RunState
from tests.kits.written_runs import add_points, write, written_run


def parsed(found: list[bytes]) -> list[tuple[str, Any]]:
    parts = []
    for each in found:
        name, data = each.decode().strip().split("\n")
        parts.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return parts


def test_a_watch_reports_each_change_once(home: RunsHome) -> None:
    run = written_run(
        home, ranks=2, state=RunState.RUNNING, logs=[b"old", b""], metrics={"loss": [1.0]}
    )
    watch = RunWatch(run)
    assert parsed(watch.poll()) == [
        ("run", {"state": "running", "cause": "", "stopping": False}),
        ("log", {"0": 3}),
    ]
    assert watch.poll() == []
    add_points(run, {"loss": [0.5, float("nan")]}, first=1)
    add_points(run, {"loss": [7.0]}, rank=1)
    assert parsed(watch.poll()) == [
        (
            "points",
            {
                "rank": 0,
                "series": {"loss": {"step": [1, 2], "time": [1001.0, 1002.0], "y": [0.5, None]}},
            },
        ),
        ("points", {"rank": 1, "series": {"loss": {"step": [0], "time": [1000.0], "y": [7.0]}}}),
    ]
    write(run.log_of(1), b"four")
    assert parsed(watch.poll()) == [("log", {"1": 4})]
    run.request("cancel")
    assert parsed(watch.poll())[0][1]["stopping"]
    run.finish(RunState.CANCELED, "canceled")
    assert parsed(watch.poll()) == [
        ("run", {"state": "canceled", "cause": "canceled", "stopping": False})
    ]


def test_a_half_written_record_waits_for_its_rest(home: RunsHome) -> None:
    run = written_run(home, state=RunState.RUNNING, metrics={"loss": [1.0, 2.0]})
    with open(run.metrics_of(0), "rb") as file:
        data = file.read()
    write(run.metrics_of(0), data[:-5])
    watch = RunWatch(run)
    watch.poll()
    write(run.metrics_of(0), data)
    assert parsed(watch.poll())[0][1]["series"]["loss"]["y"] == [2.0]


def test_the_stream_has_changed_rows_and_the_open_run(home: RunsHome) -> None:
    run = written_run(home, state=RunState.RUNNING)
    rows = RunRows(home).start()

    async def collect() -> list[bytes]:
        found = []
        async for each in events(rows, 0, run, lambda: False):
            found.append(each)
            if each.startswith(b"event: points"):
                return found
            if len(found) == 3:
                add_points(run, {"loss": [1.0]})
        raise AssertionError("the stream has ended")

    try:
        found = asyncio.run(asyncio.wait_for(collect(), 20))
    finally:
        rows.close()
    names = [name for name, _ in parsed(found[1:])]
    assert {"runs", "run", "points"} <= {*names}
    assert found[0].startswith(b"retry")
    changed = dict(parsed(found[1:]))["runs"]
    assert changed["rows"][0][0] == run.run_id


def test_rows_published_during_an_answer_follow(home: RunsHome, monkeypatch: Any) -> None:
    class Busy(RunRows):
        def since(self, version: int) -> bytes:
            asked.append(version)
            self.version += 1  # by the other thread, after the answer was made
            return b"{}"

    monkeypatch.setattr(module, "LOOK", 0.001)
    asked: list[int] = []
    rows = Busy(home)
    first = rows.version

    async def two() -> None:
        stream = events(rows, 0, None, lambda: False)
        for _ in range(3):
            await anext(stream)

    asyncio.run(asyncio.wait_for(two(), 20))
    assert asked == [0, first]


def test_a_silent_stream_shows_that_it_lives(home: RunsHome, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "LOOK", 0.001)
    monkeypatch.setattr(module, "_PING", 0.002)
    rows = RunRows(home)

    async def second() -> bytes:
        stream = events(rows, rows.version, None, lambda: False)
        await anext(stream)
        return await anext(stream)

    assert asyncio.run(asyncio.wait_for(second(), 20)).startswith(b":")
