"""RunDetails and Tensorboard, for runs of this process."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from azureml.core import Experiment, Workspace
from azureml.exceptions import OptionalDependencyMissingException, UserErrorException
from azureml.tensorboard import Tensorboard
from azureml.tensorboard.export import export_to_tensorboard
from azureml.widgets import RunDetails

from farandole.job.runs.home import RunsHome
from tests.compat_azureml.data import write
from tests.kits.messages import mentioning, mentions

KEYS = {
    *("status", "workbench_run_details_uri", "run_id", "run_properties", "child_runs"),
    *("children_metrics", "run_metrics", "run_logs", "graph", "widget_settings", "loading"),
}
PROPERTIES = {
    *("run_id", "created_utc", "properties", "tags", "script_name", "arguments", "end_time_utc"),
    *("status", "log_files", "log_groups", "run_duration", "run_number", "run_queued_details"),
}


@pytest.fixture(scope="module")
def run(home: RunsHome, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        experiment = Experiment(Workspace.from_config(), "details")
        run = experiment.start_logging(snapshot_directory=None)
        for value in (3.0, 2.0, 1.0):
            run.log("loss", value)
        run.log("accuracy", 0.5)
        run.tag("note", "<script>alert(1)</script>")
        write(folder / "outputs" / "logs" / "events.out.tfevents.1", "events")
        run.complete()
    return run


def test_the_data_of_the_view(run: Any) -> None:
    data = RunDetails(run).get_widget_data()
    assert set(data) == KEYS
    assert set(data["run_properties"]) == PROPERTIES
    assert (data["run_id"], data["status"], data["loading"]) == (run.id, "Completed", False)
    assert data["run_properties"]["run_duration"].startswith("0:00:0")
    by_name = {each["name"]: each for each in data["run_metrics"]}
    assert by_name["loss"]["series"] == [{"data": [3.0, 2.0, 1.0]}]
    assert by_name["accuracy"]["series"] == [{"data": [0.5]}]
    assert data["widget_settings"]["send_telemetry"] is False
    assert RunsHome().path not in repr(data)


def test_html_for_a_function_that_shows_it(run: Any) -> None:
    pages: list[str] = []
    RunDetails(run).show(render_lib=pages.append)
    (page,) = pages
    assert mentions(page, run.id)
    assert "<script" not in page
    assert RunsHome().path not in page
    assert "loss" in page
    assert "<polyline" in page


def test_a_line_outside_of_notebooks(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    RunDetails(run).show()
    assert mentions(capsys.readouterr().out, run.id)


def test_tensorboard_reads_the_files_of_runs(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "tensorboard" else found(name)
    )
    board = Tensorboard([run], local_root=str(tmp_path / "logs"), port=6016)
    assert board.start() is None
    assert mentions(capsys.readouterr().out, str(tmp_path / "logs"), "pip install tensorboard")
    events = tmp_path / "logs" / run.id / "logs" / "events.out.tfevents.1"
    assert events.read_text() == "events"
    board.stop()
    assert os.listdir(tmp_path / "logs") == []


def test_metrics_are_exported_to_event_files(run: Any, tmp_path: Path) -> None:
    export_to_tensorboard(run, str(tmp_path / "logs"))
    board = Tensorboard([], local_root=str(tmp_path / "logs"))
    (file,) = (tmp_path / "logs" / run.id).iterdir()
    assert b"accuracy" in file.read_bytes()
    board.stop()
    assert file.exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tensorboardX", None)
        with pytest.raises(OptionalDependencyMissingException, match=mentioning("tensorboardX")):
            export_to_tensorboard([run], str(tmp_path / "logs"))


def test_a_board_that_ends_is_an_error(run: Any, tmp_path: Path) -> None:
    package = tmp_path / "packages" / "tensorboard"
    write(package / "__init__.py", "")
    write(package / "main.py", "import sys; sys.exit('port 6016 is in use')")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path / "packages"))
        patch.setenv("PYTHONPATH", str(tmp_path / "packages"), prepend=":")
        board = Tensorboard(run, local_root=str(tmp_path / "logs"), port=free_port())
        with pytest.raises(UserErrorException, match=mentioning("port 6016 is in use")):
            board.start()
        with socket.create_server(("127.0.0.1", 0)) as foreign:
            port = foreign.getsockname()[1]
            board = Tensorboard(run, local_root=str(tmp_path / "logs"), port=port)
            with pytest.raises(UserErrorException, match=mentioning(str(port), str(port + 1))):
                board.start()
        serves = "import sys, http.server as h; sys.stderr.write('x' * (1 << 20)); h.HTTPServer(('127.0.0.1', int(sys.argv[-1])), h.BaseHTTPRequestHandler).serve_forever()"
        write(package / "main.py", serves)
        board = Tensorboard(run, local_root=str(tmp_path / "logs"), port=free_port())
        try:
            address = board.start()
            assert address == f"http://127.0.0.1:{board._port}/"
        finally:
            board.stop()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
