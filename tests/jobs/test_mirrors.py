"""Copies of a run's metrics in other trackers."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import SettingsError
from farandole.job.plugins import registry
from farandole.job.runs.folder import RunFolder, read_json, write_json
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import RunSpec
from farandole.job.runs.states import RunState
from farandole.job.tracking.tracker import SYSTEM, Tracker
from farandole.jobs import attempts, mirrors
from farandole.jobs.mirrors import process
from farandole.jobs.mirrors.contract import Point
from farandole.jobs.mirrors.process import Follower
from farandole.jobs.submission import Submission, submit, write_request
from tests.kits.jobs import wait_for_end
from tests.kits.messages import mentioning

FAILS: list[Exception] = []
CALLS: list[Any] = []


class Recorded:
    """A mirror that keeps what it is given."""

    name = "recorded"

    def __init__(self, folder: RunFolder, state: Mapping[str, Any]) -> None:
        CALLS.append(("open", dict(state)))

    def state(self) -> Mapping[str, Any]:
        return {"id": 7}

    def points(self, points: Sequence[Point]) -> None:
        if FAILS:
            raise FAILS.pop()
        CALLS.extend((each.name, each.step, each.value) for each in points)

    def params(self, values: Mapping[str, Any]) -> None:
        CALLS.append(("params", dict(values)))

    def end(self, state: RunState) -> None:
        CALLS.append(("end", state.value))


@pytest.fixture
def run(home: RunsHome, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    here = f"{__name__}:Recorded"
    monkeypatch.setitem(registry.BUILT_IN["mirror"], "recorded", here)
    monkeypatch.setattr(process, "EVERY", 0.01)
    CALLS.clear()
    FAILS.clear()
    folder = RunFolder(os.path.join(home.runs, "e", "e_1_00000000"))
    folder.folder("mirrors")
    folder.folder("outputs")
    spec = RunSpec("e", ("python", "train.py"), name="first", parameters={"lr": 0.5})
    write_request(folder, spec, home, source="", tracked=True)
    folder.record("state", state="running")
    attempts.claim(folder, 1)
    yield folder
    finish(folder)  # else this process would be ended as its runner


def finish(run: RunFolder) -> None:
    attempts.conclude(run, 1, RunState.COMPLETED, exit_code=0)


def test_each_record_is_handed_over_once(run: RunFolder) -> None:
    tracker = Tracker(run, 0)
    tracker.scalars({"loss": 1.0}, 5)
    tracker.record(SYSTEM, values={"system/memory": 3})
    follower = Follower(run, "recorded")
    follower.step()
    tracker.record("params", values={"n": 1})
    tracker.record(SYSTEM, values={"system/memory": 4})
    follower.step()
    other = Follower(run, "recorded")  # after a further attempt
    tracker.scalars({"loss": 0.5}, 6)
    other.step()
    finish(run)
    other.finish()
    assert CALLS == [
        ("open", {}),
        ("loss", 5, 1.0),
        ("system/memory", 0, 3),
        ("system/memory", 1, 4),
        ("params", {"n": 1}),
        ("open", {"id": 7}),
        ("loss", 6, 0.5),
        ("end", "completed"),
    ]


def test_a_failure_is_recorded_and_tried_again(run: RunFolder) -> None:
    Tracker(run, 0).scalars({"loss": 1.0}, 5)
    finish(run)
    FAILS.extend([OSError("no server\nmore"), OSError("no server")])
    assert process.main([run.path, "1", "recorded"]) == 0
    assert CALLS[1:] == [("loss", 5, 1.0), ("end", "completed")]
    (warning,) = [event["text"] for event in run.events() if event["event"] == "warning"]
    assert "recorded" in warning
    assert "no server" in warning


def test_a_mirror_ends_after_a_lost_runner(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = run.file("claim-1.json")
    found = read_json(claim)
    assert found is not None
    found["process"]["started"] += 1  # another process with this id
    write_json(claim, found)
    monkeypatch.setattr(process, "_ORPHANED", 0.05)
    assert process.main([run.path, "1", "recorded"]) == 0
    assert CALLS == [("open", {})]


def test_unknown_mirrors_are_refused(run: RunFolder) -> None:
    assert mirrors.names_of(" mlflow, tensorboard") == ["mlflow", "tensorboard"]
    with pytest.raises(SettingsError, match=mentioning("'mlfow'", "'mlflow'")):
        mirrors.start(run, 1, "mlfow")


def logged(run: RunFolder) -> None:
    tracker = Tracker(run, 0)
    tracker.scalars({"loss": 1.0, "accuracy@1": 0.25}, 0)
    tracker.scalars({"loss": math.nan}, 1)
    tracker.record("params", values={"lr": 0.25, "layers": [1, 2]})
    Path(run.file("outputs", "model.txt")).write_text("weights")
    finish(run)


def test_trackio_has_the_run(run: RunFolder, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    logged(run)
    assert process.main([run.path, "1", "trackio"]) == 0
    database = sqlite3.connect(tmp_path / "trackio" / "e.db")
    rows = database.execute("select run_id, run_name, step, metrics from metrics order by id")
    assert [(*row[:3], json.loads(row[3])) for row in rows] == [
        (run.run_id, "first", 0, {"loss": 1.0, "accuracy@1": 0.25}),
        (run.run_id, "first", 1, {"loss": "NaN"}),
    ]
    ((config,),) = database.execute("select config from configs where run_id = ?", (run.run_id,))
    database.close()
    assert json.loads(config)["lr"] == 0.25


def test_tensorboard_has_the_run(run: RunFolder) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    from tensorboardX.proto.event_pb2 import Event

    logged(run)
    assert process.main([run.path, "1", "tensorboard"]) == 0
    (path,) = Path(run.file("tensorboard")).iterdir()
    data, found = path.read_bytes(), []
    while data:  # records of length, checksum, event, checksum
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        found += [(value.tag, event.step) for value in event.summary.value if value.simple_value]
        data = data[16 + size :]
    assert found == [("loss", 0), ("accuracy_1", 0), ("loss", 1)]


@pytest.mark.slow
def test_mlflow_has_the_run(run: RunFolder, tmp_path: Path, monkeypatch: Any) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    uri = f"file://{tmp_path}/tracking"  # mlflow-skinny has no other store
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    logged(run)
    assert process.main([run.path, "1", "mlflow"]) == 0
    client = mlflow.MlflowClient(tracking_uri=uri)
    (experiment,) = [each for each in client.search_experiments() if each.name == "e"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("first", "FINISHED")
    assert found.data.params == {"lr": "0.5", "layers": "[1, 2]"}
    assert found.data.tags["farandole.run_id"] == run.run_id
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [(each.step, str(each.value)) for each in history] == [(0, "1.0"), (1, "nan")]
    assert found.data.metrics["accuracy_1"] == 0.25
    assert [each.path for each in client.list_artifacts(found.info.run_id)] == ["model.txt"]


PROGRAM = """
import farandole
for step in range(3):
    farandole.log_metric("loss", 1 / (step + 1), step)
"""


def test_a_submitted_run_is_mirrored(home: RunsHome, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text(PROGRAM)
    spec = RunSpec("mirrored", ("python", "train.py"), settings={"mirror": "trackio"})
    folder = submit(Submission(spec, str(source)), home)
    assert wait_for_end(folder)["state"] == "completed"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:  # the mirror ends a little later than the run
        known = read_json(folder.file("mirrors", "trackio.json")) or {}
        if known.get("state", {}).get("rows") == 3:
            break
        time.sleep(0.05)
    database = sqlite3.connect(tmp_path / "trackio" / "mirrored.db")
    rows = database.execute("select run_id, step from metrics order by id").fetchall()
    database.close()
    assert rows == [(folder.run_id, step) for step in range(3)]


def test_a_submission_with_an_unknown_mirror_leaves_nothing(home: RunsHome, tmp_path: Path) -> None:
    spec = RunSpec("mirrored", ("python", "-c", "pass"), settings={"mirror": "mlfow"})
    with pytest.raises(SettingsError, match=mentioning("'mlfow'")):
        submit(Submission(spec, str(tmp_path)), home)
    assert list(home.all_runs()) == []
