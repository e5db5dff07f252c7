"""JSON output of the commands that change or copy runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from farandole.cli import main
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import RunState
from tests.kits.jobs import wait_for_end
from tests.kits.written_runs import written_run

Output = pytest.CaptureFixture[str]


def printed(output: Output, *arguments: str) -> Any:
    output.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(output.readouterr().out)


def test_stop_prints_the_final_states(home: RunsHome, capsys: Output) -> None:
    ended = written_run(home)
    queued = written_run(home, state=RunState.QUEUED, target="nowhere")
    assert printed(capsys, "stop", ended.run_id, queued.run_id) == [
        {"run_id": ended.run_id, "state": "completed"},
        {"run_id": queued.run_id, "state": "canceled"},
    ]
    assert printed(capsys, "stop", "--all") == []


def test_rerun_prints_the_new_run(home: RunsHome, capsys: Output) -> None:
    run = written_run(home, command=("true",))
    found = printed(capsys, "rerun", run.run_id)
    assert found["tags"] == {"rerun_of": run.run_id}
    again = home.find(found["run_id"])
    assert again is not None
    wait_for_end(again)


def test_export_prints_the_archive(home: RunsHome, tmp_path: Path, capsys: Output) -> None:
    run = written_run(home)
    path = str(tmp_path / "run.tar.gz")
    assert printed(capsys, "export", run.run_id, "-o", path) == {
        "run_id": run.run_id,
        "path": path,
        "bytes": os.path.getsize(path),
    }


def test_gc_prints_the_deleted_runs(home: RunsHome, capsys: Output) -> None:
    run = written_run(home)
    found = printed(capsys, "gc", "--keep", "0", "--dry-run")
    assert found["runs"] == [{"run_id": run.run_id, "state": "completed"}]
    assert (found["deleted"], run.exists()) == (False, True)
    assert found["bytes"] > 0
    assert printed(capsys, "gc", "--keep", "0")["deleted"]
    assert not run.exists()
