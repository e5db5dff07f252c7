"""Runs from their submission to their end, with supervisors and runners that are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from farandole.errors import SettingsError
from farandole.job.runs.folder import CANCEL, RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import Resources, RunSpec
from farandole.job.runs.states import RunState
from farandole.jobs import attempts
from farandole.jobs.submission import Submission, submit
from farandole.jobs.supervisor.index import Index
from farandole.jobs.supervisor.wake import ensure_running, running_pid
from tests.kits.jobs import end_supervisor, wait_for_end

# Appends a line per start to a file outside the run, and leaves a file.
PROGRAM = """
import os, sys, time
with open(sys.argv[1], "a") as file:
    file.write(os.environ["FARANDOLE_RUN_ID"] + " " + os.environ["HOROVOD_RANK"] + "\\n")
time.sleep(float(sys.argv[2]))
open("outputs/rank" + os.environ["HOROVOD_RANK"], "w").write(os.environ["NODE_RANK"])
sys.exit(int(sys.argv[3]))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    return folder


def spec(source: Path, seconds: float = 0.0, code: int = 0, **options: object) -> Submission:
    starts = source.parent / "starts"
    command = ("python", "train.py", str(starts), str(seconds), str(code))
    return Submission(RunSpec("e", command, **options), str(source))  # type: ignore[arg-type]


def starts(source: Path) -> list[str]:
    path = source.parent / "starts"
    return path.read_text().splitlines() if path.exists() else []


def states(folder: RunFolder) -> list[str]:
    return [event["state"] for event in folder.events() if event["event"] == "state"]


def test_a_run_from_submission_to_end(home: RunsHome, source: Path) -> None:
    folder = submit(spec(source, resources=Resources(nodes=2)), home)
    assert wait_for_end(folder)["state"] == "completed"
    assert states(folder) == ["preparing", "starting", "running", "finalizing", "completed"]
    assert sorted(starts(source)) == [f"{folder.run_id} 0", f"{folder.run_id} 1"]
    for rank in (0, 1):
        assert Path(folder.file("outputs", f"rank{rank}")).read_text() == str(rank)
        assert os.path.exists(folder.log_of(rank))
    assert not os.path.exists(folder.file("work"))
    assert oct(os.stat(folder.path).st_mode)[-3:] == "700"
    index = Index(home)
    index.refresh()
    (row,) = index.runs()
    index.close()
    assert (row.run_id, row.state, row.ranks) == (folder.run_id, RunState.COMPLETED, 2)


def test_scripts_find_the_variables_that_they_index(home: RunsHome, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "show.py").write_text(
        "import json, os; json.dump(dict(os.environ),"
        " open('outputs/' + os.environ['HOROVOD_RANK'], 'w'))"
    )
    wanted = RunSpec(
        "e",
        ("python", "show.py"),
        resources=Resources(nodes=2, ranks_per_node=2),
        tf_workers=3,
        variables={"MINE": "yes"},
    )
    folder = submit(Submission(wanted, str(source)), home)
    assert wait_for_end(folder)["state"] == "completed", folder.end()
    found = [json.loads(Path(folder.file("outputs", str(rank))).read_text()) for rank in range(4)]
    last = found[3]
    for name, value in {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "NODE_RANK": "1",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "AZ_BATCH_MASTER_NODE": f"{last['MASTER_ADDR']}:{last['MASTER_PORT']}",
        "MINE": "yes",
        "FARANDOLE_RUN_ID": folder.run_id,
    }.items():
        assert last[name] == value
    clusters = [json.loads(each["TF_CONFIG"]) for each in found]
    assert [each["task"] for each in clusters] == [
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
        {"type": "worker", "index": 2},
        {"type": "ps", "index": 0},
    ]
    assert len({json.dumps(each["cluster"]) for each in clusters}) == 1
    ports = clusters[0]["cluster"]["worker"] + clusters[0]["cluster"]["ps"]
    assert len(set(ports)) == 4


def test_a_failed_run_keeps_its_folder_and_names_its_cause(home: RunsHome, source: Path) -> None:
    folder = submit(spec(source, code=3), home)
    end = wait_for_end(folder)
    assert (end["state"], end["exit_code"]) == ("failed", 3)
    assert "3" in str(end["cause"])
    assert os.path.exists(folder.file("work", "node-0", "source", "train.py"))


def test_running_and_waiting_runs_are_canceled(home: RunsHome, source: Path) -> None:
    resources = Resources(nodes=64)
    running = submit(spec(source, seconds=60, resources=Resources(), grace_seconds=1), home)
    waiting = submit(spec(source, resources=resources), home)
    deadline = time.monotonic() + 30
    while not starts(source) and time.monotonic() < deadline:
        time.sleep(0.02)
    for folder in (waiting, running):
        folder.request(CANCEL)
        ensure_running(home)
        assert wait_for_end(folder)["state"] == "canceled"
    assert len(starts(source)) == 1


def test_a_time_limit_ends_a_run(home: RunsHome, source: Path) -> None:
    folder = submit(spec(source, seconds=60, time_limit=1.0, grace_seconds=1), home)
    end = wait_for_end(folder)
    assert end["state"] == "failed"
    assert "time limit" in str(end["cause"])


def test_a_killed_runner_is_replaced_once(home: RunsHome, source: Path) -> None:
    folder = submit(spec(source, seconds=1.0), home)
    deadline = time.monotonic() + 30
    while not starts(source) and time.monotonic() < deadline:
        time.sleep(0.02)
    runner = attempts.claimant(folder, 1)
    assert runner is not None
    os.kill(runner.pid, signal.SIGKILL)
    assert wait_for_end(folder)["state"] == "completed"
    assert len(starts(source)) == 2  # the machine failed, so there was one more attempt
    assert attempts.number(folder) == 3


def test_a_run_starts_after_others(home: RunsHome, source: Path) -> None:
    first = submit(spec(source, seconds=0.5), home)
    second = submit(spec(source, after=(first.run_id,)), home)
    wait_for_end(second)
    assert [line.split()[0] for line in starts(source)] == [first.run_id, second.run_id]


def test_a_runner_that_cannot_begin_fails_the_run(
    home: RunsHome, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    monkeypatch.setattr("farandole.jobs.submission.ensure_running", lambda home: None)
    folder = submit(spec(source), home)
    monkeypatch.undo()
    monkeypatch.setenv("FARANDOLE_HOME", home.path)
    monkeypatch.setenv("XDG_STATE_HOME", str(source.parent / "state"))
    ensure_running(home)
    assert wait_for_end(folder)["state"] == "failed"


def test_a_second_supervisor_ends_immediately(home: RunsHome) -> None:
    ensure_running(home)
    deadline = time.monotonic() + 10
    while not running_pid(home) and time.monotonic() < deadline:
        time.sleep(0.01)
    first = running_pid(home)
    ensure_running(home)
    time.sleep(0.5)
    assert running_pid(home) == first


@pytest.mark.slow
def test_runs_start_once_while_supervisors_are_killed(home: RunsHome, source: Path) -> None:
    draw = random.Random(1)
    folders = [submit(spec(source, seconds=0.05), home) for _ in range(20)]
    deadline = time.monotonic() + 120
    while any(folder.end() is None for folder in folders) and time.monotonic() < deadline:
        time.sleep(draw.uniform(0.1, 0.6))
        end_supervisor(home)
        ensure_running(home)
    assert [folder.state() for folder in folders] == [RunState.COMPLETED] * 20
    assert sorted(starts(source)) == sorted(f"{folder.run_id} 0" for folder in folders)
    assert os.listdir(os.path.join(home.path, "variables")) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"experiment": "../x"}, "../x"),
        ({"target": "nowhere"}, "nowhere"),
        ({"command": ("python", "gone.py")}, "gone.py"),
        ({"resources": Resources(gpus=64)}, "64"),
        ({"resources": Resources(nodes=0)}, "nodes"),
        ({"after": ("e_1_00000000",)}, "e_1_00000000"),
        ({"command": ()}, "command"),
    ],
)
def test_wrong_requests_leave_nothing(
    home: RunsHome, source: Path, change: dict[str, object], named: str
) -> None:
    wanted = RunSpec("e", ("python", "train.py"))
    wanted = RunSpec(**{**vars(wanted), **change})
    with pytest.raises(SettingsError, match=named.replace(".", r"\.")):
        submit(Submission(wanted, str(source)), home)
    assert list(home.all_runs()) == []
    assert running_pid(home) is None
