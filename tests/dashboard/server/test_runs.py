"""The list of runs, the facts about one, and the actions."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from farandole.dashboard.server import rows as module
from farandole.dashboard.server.rows import RunRows
from farandole.errors import RunError
from farandole.job.runs.home import RunsHome
from farandole.job.runs.journal import JournalWriter
from farandole.job.runs.states import RunState
from farandole.jobs.rank_journal import RankJournal
from farandole.jobs.run import Run
from tests.kits.written_runs import add_points, written_run

SCRIPT = "<script>alert(1)</script>"


def listed(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]


def until(find: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Return the first true result of ``find``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = find()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("nothing was found in time")


def test_rows_have_all_columns(page: TestClient, home: RunsHome) -> None:
    run = written_run(
        home,
        nodes=2,
        ranks=4,
        metrics={"loss": [3.0, 2.5], "bad": [float("nan")]},
        name=SCRIPT,
        tags={"color": "red"},
        state=RunState.FAILED,
        cause="ValueError: " + "x" * 1000,
    )
    row = until(lambda: [row for row in listed(page.get("/api/runs").json()) if row["metrics"]])[0]
    assert row["id"] == run.run_id
    assert (row["experiment"], row["name"], row["state"]) == ("study", SCRIPT, "failed")
    assert (row["ranks"], row["nodes"], row["target"]) == (8, 2, "local")
    assert row["tags"] == {"color": "red"}
    assert row["metrics"] == {"bad": None, "loss": 2.5}
    assert row["cause"].startswith("ValueError")
    assert len(row["cause"]) < 400
    assert row["submitted"] <= row["started"] <= row["ended"]
    assert row["seconds"] == row["ended"] - row["started"]


def test_only_newer_rows_are_sent(home: RunsHome) -> None:
    first = written_run(home, state=RunState.RUNNING)
    second = written_run(home)
    rows = RunRows(home).start()
    try:
        answer = until(lambda: _with(rows, 2))
        assert answer["complete"]
        version = answer["version"]
        assert json.loads(rows.since(version))["rows"] == []
        first.finish(RunState.CANCELED, "canceled")
        answer = until(lambda: _newer(rows, version))
        assert [(row["id"], row["state"]) for row in listed(answer)] == [(first.run_id, "canceled")]
        assert not answer["complete"]
        version = answer["version"]
        shutil.rmtree(second.path)
        assert until(lambda: _newer(rows, version))["removed"] == [second.run_id]
        third = written_run(home)
        until(
            lambda: third.run_id in [row["id"] for row in listed(json.loads(rows.since(version)))]
        )
        assert json.loads(rows.since(5))["complete"]
        assert len(json.loads(rows.since(5))["rows"]) == 2
    finally:
        rows.close()


def test_rows_survive_errors_of_the_index(home: RunsHome, monkeypatch: Any) -> None:
    errors: list[Exception] = [
        RunError("the disk is full"),
        sqlite3.OperationalError("the database is locked"),
        OSError("a stale file handle"),
    ]

    class Failing(module.Index):
        def __init__(self, home: RunsHome) -> None:
            if len(errors) > 2:
                raise errors.pop()
            super().__init__(home)

        def runs(self, *arguments: Any) -> Any:
            if errors:
                raise errors.pop()
            return super().runs(*arguments)

    monkeypatch.setattr(module, "Index", Failing)
    written_run(home)
    rows = RunRows(home).start()
    try:
        assert until(lambda: _with(rows, 1))["complete"]
        assert errors == []
    finally:
        rows.close()


def _with(rows: RunRows, count: int) -> Any:
    answer = json.loads(rows.since(0))
    return answer if len(answer["rows"]) == count else None


def _newer(rows: RunRows, version: int) -> Any:
    answer = json.loads(rows.since(version))
    return answer if answer["version"] > version and (answer["rows"] or answer["removed"]) else None


def test_metrics_and_tags_of_a_row_follow_the_run(
    home: RunsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RELOAD", 0.0)
    run = written_run(home, state=RunState.RUNNING, metrics={"loss": [3.0]})
    rows = RunRows(home).start()
    try:
        until(lambda: _row(rows)["metrics"] == {"loss": 3.0})
        add_points(run, {"loss": [2.0]}, first=1)
        until(lambda: _row(rows)["metrics"] == {"loss": 2.0})
        Run(run, home).tag("best", "yes")
        until(lambda: _row(rows)["tags"] == {"best": "yes"})
        run.finish(RunState.CANCELED)
        until(lambda: _row(rows)["state"] == "canceled")
        Run(run, home).tag("late", "yes")
        until(lambda: _row(rows)["tags"] == {"best": "yes", "late": "yes"})
    finally:
        rows.close()


def _row(rows: RunRows) -> dict[str, Any]:
    found = listed(json.loads(rows.since(0)))
    return found[0] if found else {"metrics": None, "tags": None}


def test_facts_have_the_ranks_and_the_metrics(page: TestClient, home: RunsHome) -> None:
    parent = written_run(home)
    run = written_run(
        home,
        nodes=2,
        ranks=2,
        state=RunState.RUNNING,
        logs=[b"hello\n", b""],
        metrics={"loss": [1.0]},
        name=SCRIPT,
        parent=parent.run_id,
        parameters={"rate": 0.1},
    )
    with JournalWriter(run.metrics_of(0)) as journal:
        journal.append({"kind": "finding", "code": "lr", "text": "too high", "time": 1.0})
        journal.append({"kind": "waiting", "ranks": [2], "names": ["grads"], "seconds": 3.0})
    RankJournal(run).ended(3, -9)
    facts = page.get(f"/api/run/{run.run_id}").json()
    assert (facts["name"], facts["state"], facts["parameters"]) == (
        SCRIPT,
        "running",
        {"rate": 0.1},
    )
    assert facts["metrics"] == {"0": ["loss"]}
    assert facts["actions"] == ["stop", "rerun"]
    assert facts["findings"] == ["too high [lr]"]
    ranks = facts["ranks"]
    assert [(each["rank"], each["node"], each["host"]) for each in ranks] == [
        (0, 0, "host-a"),
        (1, 0, "host-a"),
        (2, 1, "host-a"),
        (3, 1, "host-a"),
    ]
    assert [each["state"] for each in ranks] == ["waiting", "running", "running", "failed"]
    assert [each["waiting_for"] for each in ranks] == [[2], [], [], []]
    assert ranks[0]["collectives"] == ["grads"]
    assert ranks[3]["exit_code"] == -9
    assert ranks[0]["log_bytes"] == 6
    children = page.get(f"/api/run/{parent.run_id}").json()["children"]
    assert children == [{"id": run.run_id, "name": SCRIPT, "state": "running"}]


def test_the_ranks_of_an_elastic_run_change(page: TestClient, home: RunsHome) -> None:
    run = written_run(home, ranks=2, state=RunState.RUNNING)
    journal = RankJournal(run)
    for process in range(2):
        journal.added(process, "host-a")
    journal.formed(1, [(0, "host-a"), (1, "host-a")])
    journal.ended(0, -9)
    journal.added(2, "host-b")
    journal.formed(2, [(1, "host-a"), (2, "host-b")])
    with open(run.log_of(2) if run.folder("user_logs") else "", "w") as file:
        file.write("later")
    facts = page.get(f"/api/run/{run.run_id}").json()
    found = [(each["rank"], each["process"], each["host"]) for each in facts["ranks"]]
    assert found == [(0, 1, "host-a"), (1, 2, "host-b"), (None, 0, "host-a")]
    assert [each["exit_code"] for each in facts["ranks"]] == [None, None, -9]
    assert facts["ranks"][1]["log_bytes"] == 5
    assert [each["ranks"] for each in facts["memberships"]] == [2, 2]
    assert facts["memberships"][1]["hosts"] == ["host-a", "host-b"]


def test_the_slowest_rank_is_the_one_that_others_wait_for(page: TestClient, home: RunsHome) -> None:
    run = written_run(home, ranks=3, state=RunState.RUNNING)
    run.folder("metrics")
    for rank, seconds in enumerate([0.05, 0.01, 0.06]):
        values = {"training/wait_seconds_per_step": seconds, "training/steps_per_second": 10.0}
        with JournalWriter(run.metrics_of(rank)) as journal:
            journal.append({"kind": "system", "values": values})
    ranks = page.get(f"/api/run/{run.run_id}").json()["ranks"]
    assert [each["waiting_for"] for each in ranks] == [[1], [], [1]]
    assert [each["wait_share"] for each in ranks] == [0.5, 0.1, 0.6]


def test_the_position_in_the_queue_counts_runs_before(page: TestClient, home: RunsHome) -> None:
    runs = [written_run(home, state=RunState.QUEUED, priority=rank) for rank in (0, 0, 5)]
    written_run(home)
    written_run(home, state=RunState.QUEUED, target="elsewhere")
    found = [page.get(f"/api/run/{run.run_id}").json()["queue_position"] for run in runs]
    assert found == [1, 2, 0]
    ended = written_run(home)
    assert page.get(f"/api/run/{ended.run_id}").json()["queue_position"] is None


def test_stop_and_rerun_act_on_the_run(page: TestClient, home: RunsHome) -> None:
    run = written_run(home, state=RunState.QUEUED, command=("true",), target="nowhere")
    assert page.post(f"/api/run/{run.run_id}/stop").status_code == 200
    until(lambda: run.end() is not None)
    facts = page.get(f"/api/run/{run.run_id}").json()
    assert (facts["state"], facts["actions"]) == ("canceled", ["rerun"])
    done = written_run(home, command=("true",))
    answer = page.post(f"/api/run/{done.run_id}/rerun").json()
    again = home.find(answer["run_id"])
    assert again is not None
    assert again.spec().command == ("true",)
    until(lambda: again.end() is not None)
    function = written_run(home, command=())
    assert page.post(f"/api/run/{function.run_id}/rerun").status_code == 409


def test_compare_needs_two_runs_and_names_their_differences(
    page: TestClient, home: RunsHome
) -> None:
    one, two = (written_run(home, parameters={"rate": rate}) for rate in (0.1, 0.2))
    assert page.get(f"/api/compare?runs={one.run_id}").status_code == 400
    found = page.get(f"/api/compare?runs={one.run_id},{two.run_id}")
    assert found.status_code == 200
    assert "0.2" in found.text


def test_a_damaged_folder_is_an_error_of_this_run_alone(page: TestClient, home: RunsHome) -> None:
    run, good = written_run(home), written_run(home)
    with open(run.file("spec.json"), "w") as file:
        file.write("{")
    assert page.get(f"/api/run/{run.run_id}").status_code == 409
    assert page.get(f"/api/run/{good.run_id}").status_code == 200
    until(lambda: good.run_id in [row["id"] for row in listed(page.get("/api/runs").json())])
