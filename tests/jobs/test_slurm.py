"""Runs on a real Slurm cluster of two nodes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from farandole.errors import SettingsError
from farandole.job.runs.folder import CANCEL
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import Resources, RunSpec
from farandole.jobs.submission import Submission, submit
from farandole.jobs.supervisor.wake import ensure_running
from farandole.jobs.targets.contract import NodeCounts, Presence, TargetSpec, Ticket
from farandole.jobs.targets.slurm import SlurmTarget, node_counts, parsed
from tests.kits import slurm as kit
from tests.kits.jobs import end_supervisor, wait_for_end

PROGRAM = """
import os, sys, time
import numpy as np
import farandole.numpy as hvd

hvd.init()
total = hvd.allreduce(np.ones(1, np.float32), op=hvd.Sum)
print(hvd.rank(), hvd.size(), os.environ["NODE_RANK"], total.tolist(), flush=True)
time.sleep(float(sys.argv[1]))
open(f"outputs/rank{hvd.rank()}", "w").write(os.environ["SLURM_JOB_ID"])
"""


@pytest.fixture
def source(slurm_cluster: kit.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm_cluster.environment()[name])
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    return folder


def submission(source: Path, seconds: float, **options: object) -> Submission:
    values = {
        "experiment": "cluster",
        "command": ("python", "train.py", str(seconds)),
        "target": "slurm",
        "resources": Resources(nodes=2),
    }
    return Submission(RunSpec(**{**values, **options}), str(source))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_run_outlives_its_supervisor(home: RunsHome, source: Path) -> None:
    folder = submit(submission(source, 4.0), home)
    log = Path(folder.log_of(1))
    deadline = time.monotonic() + 90
    while not (log.exists() and log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert end_supervisor(home)
    time.sleep(0.5)
    ensure_running(home)
    assert wait_for_end(folder, 120)["state"] == "completed"
    assert log.read_text() == "1 2 1 [2.0]\n"
    jobs = {Path(folder.file("outputs", f"rank{rank}")).read_text() for rank in (0, 1)}
    assert len(jobs) == 1


@pytest.mark.slow
def test_running_and_pending_runs_are_canceled(home: RunsHome, source: Path) -> None:
    running = submit(submission(source, 60.0, grace_seconds=1.0), home)
    deadline = time.monotonic() + 90
    while running.state().value != "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    # the nodes have 4 CPUs each, so this one cannot start
    pending = submit(submission(source, 60.0, resources=Resources(nodes=2, cores=4)), home)
    while not any("reason" in event for event in pending.events()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for folder in (pending, running):
        folder.request(CANCEL)
        ensure_running(home)
        assert wait_for_end(folder, 90)["state"] == "canceled"


@pytest.mark.slow
def test_a_job_without_a_ticket_is_found(home: RunsHome, source: Path) -> None:
    folder = submit(submission(source, 3.0), home)
    deadline = time.monotonic() + 90
    while folder.state().value != "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert end_supervisor(home)
    (ticket,) = [Path(folder.path, name) for name in os.listdir(folder.path) if "ticket" in name]
    job = json.loads(ticket.read_text())["data"]["job"]
    ticket.unlink()  # as if the supervisor had been killed right after it submitted
    target = SlurmTarget(TargetSpec("slurm", "slurm"))
    # no second job is submitted
    assert target.start(folder, ["python", "1"], {}) == Ticket("slurm", {"job": job})
    ensure_running(home)
    assert wait_for_end(folder, 90)["state"] == "completed"
    assert Path(folder.log_of(1)).read_text() == "1 2 1 [2.0]\n"


def test_states_of_slurm_are_read() -> None:
    output = "1|PENDING|Resources\n2|RUNNING|None\n3|PREEMPTED|None\n4|FAILED|NonZeroExitCode\n"
    found = parsed(output)
    assert found["1"] == Presence("pending", "Resources")
    assert found["2"].state == "present"
    assert [found[job].preempted for job in ("3", "4")] == [True, False]
    assert parsed("") == {}


def test_the_nodes_of_slurm_are_counted(slurm_cluster: kit.Cluster, source: Path) -> None:
    counts = SlurmTarget(TargetSpec("slurm", "slurm")).nodes([])
    assert counts.idle + counts.running == 2
    output = "a|idle\na|idle\nb|mixed\nc|idle~\nd|allocated#\ne|down*\nf|idle%\ng|idle*\n"
    assert node_counts(output) == NodeCounts(1, 1, preparing=1, leaving=1, unusable=2)


def test_a_request_is_refused_without_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SettingsError, match="sbatch"):
        SlurmTarget(TargetSpec("slurm", "slurm")).check(Resources())
    with pytest.raises(SettingsError, match="queue"):
        SlurmTarget(TargetSpec("slurm", "slurm", options={"queue": "x"}))
