"""Runs of jobs that were not submitted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import farandole
from farandole.errors import JobFailedError, SettingsError
from farandole.job.runs.folder import RUN_VARIABLE, RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.journal import records
from farandole.job.runs.states import RunState
from farandole.jobs import attempts, metrics
from farandole.jobs.commands.rerun import rerun
from farandole.jobs.rank_journal import processes
from farandole.jobs.supervisor.daemon import RunSupervisor
from tests.kits.jobs import wait_for_end
from tests.kits.messages import mentioning, mentions


def the_run(home: RunsHome) -> RunFolder:
    (folder,) = home.all_runs()
    return folder


def train(fail: bool = False) -> int:
    import farandole.numpy as hvd

    hvd.init()
    for step in range(3):
        farandole.log_metric("loss", 1.0 / (step + 1), step)
    farandole.log_params({"lr": 0.5})
    print("output of rank", hvd.rank())
    assert not fail or hvd.rank() == 0
    return hvd.rank()


def test_a_function_leaves_a_run(home: RunsHome, tmp_path: Path, capfd: Any) -> None:
    logs = tmp_path / "logs"
    assert farandole.run(train, np=2, track=True, output_dir=str(logs)) == [0, 1]
    run = the_run(home)
    assert run.spec().experiment == "train"
    assert (run.spec().resources.ranks, run.spec().command) == (2, ())
    assert run.state() is RunState.COMPLETED
    for rank in (0, 1):
        text = Path(run.log_of(rank)).read_text()
        assert f"output of rank {rank}" in text
        assert (logs / f"rank.{rank}" / "stdout").read_text() in text
        assert metrics.series(run, "loss", rank)[2].tolist() == [1.0, 1 / 2, 1 / 3]
    assert metrics.params(run) == {"lr": 0.5}
    assert mentions(capfd.readouterr().err, run.run_id, "farandole show")
    assert os.listdir(os.path.join(home.path, "queue")) == []
    with pytest.raises(SettingsError, match=run.run_id):
        rerun(run, home)


def test_a_failed_job_leaves_its_cause(home: RunsHome) -> None:
    with pytest.raises(JobFailedError):
        farandole.run(train, (True,), np=2, track=True)
    end = the_run(home).end()
    assert end is not None
    assert end["state"] == "failed"
    assert "AssertionError" in end["cause"]
    assert attempts.number(the_run(home)) == 2


def test_a_job_that_cannot_start_leaves_nothing(home: RunsHome) -> None:
    with pytest.raises(SettingsError):
        farandole.run(train, np=2, track=True, hosts="localhost:1")
    with pytest.raises(SettingsError, match=mentioning("mlfow")):
        farandole.run(train, np=1, track=True, mirror="mlfow")
    assert home.experiments() == []


def test_a_job_without_the_setting_leaves_nothing(home: RunsHome) -> None:
    assert farandole.run(os.getpid, np=1)
    assert list(home.all_runs()) == []


def test_a_job_within_a_run_belongs_to_it(
    home: RunsHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path / "outer"))
    monkeypatch.setenv("FARANDOLE_TRACK", "1")
    farandole.run(train, np=1)
    assert list(home.all_runs()) == []
    assert metrics.names(RunFolder(str(tmp_path / "outer"))) == ["loss"]


SCRIPT = """
import os, sys, time
import farandole
farandole.log_metric("started", 1)
time.sleep(float(sys.argv[1]))
"""


def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir(exist_ok=True)
    return folder


def command(tmp_path: Path, seconds: float) -> list[str]:
    script = source(tmp_path) / "train model.py"
    script.write_text(SCRIPT)
    start = [sys.executable, "-m", "farandole.cli", "run", "-np", "1", "--track"]
    return [*start, sys.executable, "-u", str(script), str(seconds)]


def started(home: RunsHome) -> RunFolder:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for folder in home.all_runs():
            if metrics.names(folder):
                return folder
        time.sleep(0.05)
    raise AssertionError("no run has started")


def test_an_interrupted_command_is_canceled(home: RunsHome, tmp_path: Path) -> None:
    process = subprocess.Popen(command(tmp_path, 60), cwd=source(tmp_path), stderr=subprocess.PIPE)
    try:
        run = started(home)
        assert run.state() is RunState.RUNNING
        assert run.spec().experiment == "train-model"
        process.send_signal(signal.SIGINT)
        assert wait_for_end(run)["state"] == "canceled"
    finally:
        process.kill()
        process.communicate()


def test_a_killed_driver_is_noticed_and_not_replaced(home: RunsHome, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, 60), cwd=source(tmp_path), stderr=subprocess.DEVNULL
    )
    try:
        run = started(home)
    finally:
        process.kill()
        process.wait()
    supervisor = RunSupervisor(home)
    deadline = time.monotonic() + 20
    while supervisor.step() and time.monotonic() < deadline:
        time.sleep(0.05)
    supervisor.close()
    assert run.state() is RunState.FAILED
    assert attempts.number(run) == 2


def test_a_command_is_submitted_again_from_its_folder(home: RunsHome, tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, 0), cwd=source(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 0
    run = the_run(home)
    assert mentions(done.stderr, run.run_id)
    again = rerun(run, home)
    assert wait_for_end(again)["state"] == "completed"
    assert again.spec().tags["rerun_of"] == run.run_id


def wait_for_rank_1() -> None:
    import numpy as np

    import farandole.numpy as hvd

    hvd.init()
    waiting = RunFolder(os.environ[RUN_VARIABLE]).metrics_of(0)
    deadline = time.monotonic() + 60
    while hvd.rank() == 1 and time.monotonic() < deadline:
        if any(each.get("kind") == "waiting" for each in records(waiting)):
            break
        time.sleep(0.05)
    hvd.allreduce(np.ones(3), name="grads")


@pytest.mark.slow
def test_long_waits_and_ends_of_ranks_are_recorded(home: RunsHome) -> None:
    farandole.run(wait_for_rank_1, np=2, track=True)
    run = the_run(home)
    first, *_, last = (each for each in records(run.metrics_of(0)) if each.get("kind") == "waiting")
    assert (first["ranks"], first["names"]) == ([1], ["allreduce.grads"])
    assert last["ranks"] == []
    assert {rank: each.code for rank, each in processes(run).items()} == {0: 0, 1: 0}
