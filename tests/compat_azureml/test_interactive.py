"""Runs of this process: ``start_logging``, children, files, tags and metrics."""

from __future__ import annotations

import json
import re
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from azureml._farandole import interactive
from azureml.core import Experiment, Run, Workspace
from azureml.core.run import _OfflineRun
from azureml.exceptions import RunEnvironmentException, SnapshotException, UserErrorException

from farandole.job.runs.home import RunsHome
from tests.compat_azureml.tools import python
from tests.kits.messages import mentioning, mentions

UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
MATRIX = {"schema_type": "confusion_matrix", "schema_version": "v1", "data": {"matrix": [[1, 2]]}}


@pytest.fixture
def experiment(home: RunsHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.chdir(tmp_path)
    return Experiment(Workspace(workspace_name="here"), "interactive")


@pytest.fixture
def run(experiment: Experiment) -> Any:
    started = experiment.start_logging(snapshot_directory=None)
    yield started
    started.complete()


def test_run_begins_and_ends_in_this_process(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print()")
    run = experiment.start_logging(display_name="first")
    assert re.fullmatch(UUID, run.id)
    assert (run.get_status(), run.type, run.display_name) == ("Running", None, "first")
    (tmp_path / "outputs" / "model.txt").write_text("weights")
    run.complete()
    assert run.get_status() == "Completed"
    assert run.get_file_names() == ["outputs/model.txt"]
    assert next(experiment.get_runs()) == run
    details = run.get_details()
    assert details["target"] == "sdk"
    assert details["startTimeUtc"] <= details["endTimeUtc"]
    assert details["endTimeUtc"].endswith("Z")
    assert re.fullmatch(UUID, details["properties"]["ContentSnapshotId"])
    with zipfile.ZipFile(run.restore_snapshot(path=str(tmp_path / "zip"))) as archive:
        assert archive.namelist() == ["program.py"]


def test_failure_and_cancellation(experiment: Experiment) -> None:
    class Boom(Exception):
        pass

    with pytest.raises(Boom), experiment.start_logging(snapshot_directory=None) as failing:
        raise Boom("too hot")
    assert failing.get_status() == "Failed"
    assert failing.get_details()["error"]["error"]["message"] == "Boom: too hot"
    canceled = experiment.start_logging(snapshot_directory=None, outputs=False)
    canceled.cancel()
    assert canceled.get_status() == "Canceled"
    named = experiment.start_logging(snapshot_directory=None)
    named.fail(error_details="no data", error_code="E7")
    assert named.get_details()["error"]["error"]["message"] == "E7: no data"


@pytest.mark.parametrize(
    ("end", "status", "cause"),
    [("pass", "Completed", None), ("raise ValueError('no data')", "Failed", "ValueError: no data")],
)
def test_end_of_the_process_ends_its_run(
    experiment: Experiment, tmp_path: Path, end: str, status: str, cause: str | None
) -> None:
    program = (
        "import os, sys\nfrom azureml.core import Experiment, Workspace\n"
        "run = Experiment(Workspace(), 'interactive').start_logging(snapshot_directory=None)\n"
        "print(run.id, flush=True)\n"
        "if not os.fork():\n    sys.exit()\n"
        "os.wait()\nprint(run.get_status(), flush=True)\n"
    )
    done = python("-c", program + end, cwd=tmp_path)
    run_id, while_running = done.stdout.split()
    run = Run.get(experiment.workspace, run_id)
    assert (while_running, run.get_status()) == ("Running", status)
    assert run.get_details().get("error", {}).get("error", {}).get("message") == cause


def test_outputs_that_cannot_be_kept_fail_the_run(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("the quota is used up")

    run = experiment.start_logging(snapshot_directory=None)
    (tmp_path / "outputs" / "model.txt").write_text("weights")
    threads = threading.active_count()
    monkeypatch.setattr(interactive.files, "add", full)
    with pytest.raises(OSError, match=mentioning("quota")):
        run.complete()
    assert threading.active_count() < threads  # without its heartbeat
    assert run.get_status() == "Failed"
    assert mentions(run.get_details()["error"]["error"]["message"], "quota")


@pytest.mark.parametrize("later", [False, True])
def test_an_error_of_an_earlier_cell_ends_no_run(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    class Shell:
        last_execution_succeeded = True

    class IPython(ModuleType):
        get_ipython = Shell

    if later:
        monkeypatch.setitem(sys.modules, "IPython", IPython("IPython"))
    else:
        monkeypatch.setattr(sys, "last_value", ValueError("of a cell"), raising=False)
    run = experiment.start_logging(snapshot_directory=None)
    if later:
        monkeypatch.setattr(sys, "last_value", ValueError("of a cell"), raising=False)
    interactive._end_all()
    assert run.get_status() == "Completed"


def test_a_program_that_failed_runs_its_exit_handlers(tmp_path: Path) -> None:
    program = (
        "import atexit, os, sys\nfrom azureml.core import Run\n"
        "atexit.register(print, 'the last words')\n"
        "from azureml._farandole.context import fail_at_exit\nfail_at_exit('no convergence')\n"
        "if not os.fork():\n    sys.exit()\n"
        "print('child', os.waitstatus_to_exitcode(os.wait()[1]), flush=True)\n"
    )
    done = python("-c", program, cwd=tmp_path)
    assert done.returncode == 1
    assert mentions(done.stderr, "no convergence")
    assert done.stdout.split("\n") == ["the last words", "child 0", "the last words", ""]


def test_large_source_is_refused(experiment: Experiment, tmp_path: Path) -> None:
    for number in range(2001):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(SnapshotException, match=mentioning("2001 files", "2000 files")):
        experiment.start_logging()
    experiment.start_logging(snapshot_directory=None).complete()


def test_snapshot_can_be_taken_again(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a")
    with experiment.start_logging() as run:
        first = run.get_snapshot_id()
        (tmp_path / "b.py").write_text("b")
        assert run.take_snapshot("b.py") == run.get_snapshot_id() != first
        with zipfile.ZipFile(run.restore_snapshot()) as archive:
            assert archive.namelist() == ["b.py"]
        with pytest.raises(SnapshotException, match=mentioning("absent")):
            run.take_snapshot("absent")


def test_metrics_in_all_forms(run: Any) -> None:
    run.log("accuracy", 0.5)
    for value in (3, 2.0, 1):
        run.log("loss", value, step=int(value))
    run.log("phase", "warm")
    run.log_list("one", [7])
    run.log_list("words", ["a", "b"])
    run.log_row("rows", x=1, y="a")
    run.log_row("rows", x=2, y="b")
    run.log_row("row", x=1)
    run.log_table("table", {"a": [1, 2], "b": ["x", "y"]})
    run.log_table("cells", {"a": 1, "b": 2.5})
    assert run.get_metrics() == {
        "accuracy": 0.5,
        "loss": [3.0, 2.0, 1.0],
        "phase": "warm",
        "one": [7.0],
        "words": ["a", "b"],
        "rows": {"x": [1, 2], "y": ["a", "b"]},
        "row": {"x": [1]},
        "table": {"a": [1, 2], "b": ["x", "y"]},
        "cells": {"a": 1, "b": 2.5},
    }
    assert run.get_metrics("accuracy") == {"accuracy": 0.5}
    with pytest.raises(UserErrorException, match=mentioning("'table'", "a: 1", "b: 2")):
        run.log_table("table", {"a": [1], "b": [1, 2]})
    with pytest.raises(UserErrorException, match=mentioning("''")):
        run.log("", 1)


def test_images_and_charts_are_files(run: Any, tmp_path: Path) -> None:
    class Plot:
        def savefig(self, path: str) -> None:
            Path(path).write_bytes(b"drawn")

    (tmp_path / "given.jpg").write_bytes(b"taken")
    run.log_image("drawing", plot=Plot())
    run.log_image("photo", path="given.jpg")
    run.log_confusion_matrix("matrix", MATRIX)
    run.log_accuracy_table("accuracies", json.dumps(MATRIX))
    run.log_residuals("residuals", MATRIX)
    run.log_predictions("predictions", MATRIX)
    names = run.get_file_names()
    metrics = run.get_metrics()
    prefix = f"aml://artifactId/ExperimentRun/dcid.{run.id}/"
    assert {each.removeprefix(prefix) for each in metrics.values()} == set(names)
    drawing = next(name for name in names if name.startswith("drawing"))
    assert re.fullmatch(r"drawing_\d+\.png", drawing)
    run.download_file(drawing, "copy.png")
    assert (tmp_path / "copy.png").read_bytes() == b"drawn"
    run.download_file("matrix.json", f"{tmp_path}/")
    assert json.loads((tmp_path / "matrix.json").read_text()) == MATRIX
    for wrong in ({}, {"path": "given.jpg", "plot": Plot()}):
        with pytest.raises(UserErrorException, match=mentioning("path=", "plot=")):
            run.log_image("both", **wrong)


def test_files_keep_their_names(run: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a.txt", "folder/b.txt"):
        (tmp_path / name).write_text(name)
    run.upload_file("top.txt", "a.txt")
    with (tmp_path / "a.txt").open("rb") as stream:
        run.upload_file("outputs/model/a.txt", stream)
    run.upload_files(["x/1.txt", "x/2.txt"], ["a.txt", "folder/b.txt"])
    run.upload_folder("tree", "folder")
    expected = ["outputs/model/a.txt", "top.txt", "tree/b.txt", "x/1.txt", "x/2.txt"]
    assert run.get_file_names() == expected
    run.download_files("x/", output_directory="got", append_prefix=False)
    run.download_files("tree", output_directory="got")
    run.download_files("outputs/mod", output_directory="got", append_prefix=False)
    run.download_files("x/1.txt", output_directory="got/one", append_prefix=False)
    got = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "got").rglob("*.txt"))
    expected = ["1.txt", "2.txt", "model/a.txt", "one/1.txt", "tree/b.txt"]
    assert got == [f"got/{name}" for name in expected]
    with pytest.raises(UserErrorException, match=mentioning("absent.txt", "top.txt")):
        run.download_file("absent.txt")
    with pytest.raises(UserErrorException, match=mentioning("'../out.txt'")):
        run.upload_file("../out.txt", "a.txt")
    with pytest.raises(UserErrorException, match=mentioning("absent.txt")):
        run.upload_file("there.txt", "absent.txt")


def test_tags_properties_and_names(run: Any, experiment: Experiment) -> None:
    run.tag("quality", "good")
    run.tag("flag")
    run.set_tags({"round": 1})
    assert run.get_tags() == {"quality": "good", "flag": None, "round": "1"}
    assert [each.id for each in experiment.get_runs(tags="flag")] == [run.id]
    assert run.remove_tags(["flag"]) == {"quality": "good", "round": "1"}
    run.add_properties({"author": "me"})
    assert run.get_properties()["author"] == "me"
    with pytest.raises(UserErrorException, match=mentioning("'author'", "'you'")):
        run.add_properties({"author": "you"})
    run.display_name, run.description = "shown", "described"
    again = Run.get(experiment.workspace, run.id)
    assert (again.display_name, again.description, again.name) == ("shown", "described", "shown")
    assert [each.id for each in experiment.get_runs(tags={"quality": "good"})] == [run.id]
    assert list(experiment.get_runs(tags={"quality": "bad"})) == []
    assert [each.id for each in experiment.get_runs(properties={"author": "me"})] == [run.id]


def test_ranks_set_tags_at_the_same_time(run: Any) -> None:
    names = [f"rank-{number}" for number in range(16)]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(run.tag, names))
    assert sorted(run.get_tags()) == sorted(names)


def test_ranks_add_properties_at_the_same_time(run: Any) -> None:
    names = [f"rank-{number}" for number in range(16)]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: run.add_properties({name: name}), names))
    assert set(names) <= set(run.get_properties())


def test_children_are_runs_of_their_parent(run: Any, experiment: Experiment) -> None:
    with run.child_run("first") as child:
        child.log("loss", 1)
    made = run.create_children(tag_key="fold", tag_values=["0", "1"])
    made[0].complete()
    made[1].fail("bad")
    assert {each.id for each in run.get_children()} == {child.id, *(each.id for each in made)}
    assert [each.id for each in run.get_children(tags={"fold": "1"}, status="Failed")] == [
        made[1].id
    ]
    assert child.parent == run
    assert run.get_metrics(recursive=True)[child.id] == {"loss": 1.0}
    assert child.id not in [each.id for each in experiment.get_runs()]
    assert child.id in [each.id for each in experiment.get_runs(include_children=True)]
    with pytest.raises(UserErrorException, match=mentioning("count=")):
        run.create_children()
    for wrong in ("../../out", child.id):
        with pytest.raises(UserErrorException, match=mentioning(repr(wrong))):
            run.child_run(run_id=wrong)


def test_context_outside_of_a_run_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FARANDOLE_RUN_DIR", raising=False)
    run = Run.get_context()
    assert isinstance(run, _OfflineRun)
    assert re.fullmatch(f"OfflineRun_{UUID}", run.id)
    assert not hasattr(run, "experiment")
    run.log("Accuracy", 0.98, step=3)
    run.log_row("row", x=1)
    run.upload_file("name", "path")
    run.complete()
    assert run.get_status() == "Completed"
    assert capsys.readouterr().out.splitlines() == [
        "Attempted to log scalar metric Accuracy:",
        "0.98",
        "Attempted to log row metric row:",
        "{'x': 1}",
        "Attempted to track file name at path",
    ]
    with pytest.raises(RunEnvironmentException):
        Run.get_context(allow_offline=False)
