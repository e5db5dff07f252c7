"""Supervisors against runners on their way, full disks, damaged folders and other hosts."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.jobs import chaos
from farandole.job.launch.driver import Interrupted
from farandole.job.runs.folder import CANCEL, RunFolder, write_json, write_once
from farandole.job.runs.home import RunsHome
from farandole.job.runs.identity import ProcessIdentity
from farandole.job.runs.spec import RunSpec
from farandole.job.runs.states import RunState
from farandole.jobs import attempts
from farandole.jobs.heartbeat import Heartbeat
from farandole.jobs.runner import _Runner
from farandole.jobs.submission import Submission, submit
from farandole.jobs.supervisor import wake
from farandole.jobs.supervisor.daemon import RunSupervisor
from farandole.jobs.supervisor.place import lock_path, state_folder
from farandole.jobs.targets.contract import Capacity, Launch, Presence, TargetSpec, Ticket
from farandole.jobs.targets.local import presence_here
from tests.kits.messages import mentions
from tests.kits.written_runs import written_run


class FakeTarget:
    """A target whose runners are nothing but tickets."""

    kind = "local"

    def __init__(self, spec: TargetSpec) -> None:
        self.errors: list[Exception] = []
        self.started: list[str] = []
        self.canceled: list[Mapping[str, object]] = []
        self.presences: dict[str, Presence] = {}

    def capacity(self) -> Capacity:
        return Capacity(cores=8, memory=0, gpus=0, nodes=0)

    def start(self, folder: RunFolder, command: Sequence[str], env: Mapping[str, str]) -> Ticket:
        if self.errors:
            raise self.errors.pop()
        self.started.append(folder.run_id)
        return Ticket("local", {"ticket": folder.run_id})

    def presence(self, tickets: Sequence[Ticket]) -> Sequence[Presence]:
        return [
            self.presences.get(str(ticket.data.get("ticket")), Presence("present"))
            for ticket in tickets
        ]

    def cancel(self, ticket: Ticket, grace_seconds: float) -> None:
        self.canceled.append(ticket.data)

    def launch(self, spec: RunSpec) -> Launch:
        return Launch("local")

    def check(self, resources: object) -> None:
        """Accept any resources."""


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> FakeTarget:
    made = FakeTarget(TargetSpec("local", "local"))
    monkeypatch.setattr("farandole.jobs.supervisor.daemon.load_target", lambda home, name: made)
    monkeypatch.setattr("farandole.jobs.submission.ensure_running", lambda home: None)
    return made


@pytest.fixture
def supervised(home: RunsHome, target: FakeTarget) -> Iterator[Callable[[], RunSupervisor]]:
    made: list[RunSupervisor] = []

    def supervisor() -> RunSupervisor:
        made.append(RunSupervisor(home))
        return made[-1]

    yield supervisor
    for each in made:
        each.close()


@pytest.fixture
def sleeper() -> Iterator[ProcessIdentity]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield ProcessIdentity.of(process.pid)
    process.kill()
    process.wait()


Supervised = Callable[[], RunSupervisor]


def queued(home: RunsHome, **options: object) -> RunFolder:
    return submit(Submission(RunSpec("e", ("true",), **options)), home)  # type: ignore[arg-type]


def claim_for(folder: RunFolder, attempt: int, process: ProcessIdentity, **more: object) -> None:
    claimed = {"process": process.to_json(), "time": time.time(), **more}
    assert write_once(folder.file(f"claim-{attempt}.json"), claimed)


def test_a_late_runner_cannot_start_a_canceled_run(home: RunsHome, supervised: Supervised) -> None:
    folder = queued(home)
    folder.request(CANCEL)
    supervised().step()
    assert folder.state() is RunState.CANCELED
    assert not attempts.claim(folder, 1)


def test_a_claimed_run_is_not_canceled_as_waiting(
    home: RunsHome, supervised: Supervised, target: FakeTarget, sleeper: ProcessIdentity
) -> None:
    target.errors = [OSError(errno.ENOSPC, "full")]  # the run stays in the queue
    folder, supervisor = queued(home), supervised()
    supervisor.step()
    claim_for(folder, 1, sleeper)
    folder.request(CANCEL)
    supervisor.step()
    supervisor.step()
    assert folder.end() is None
    assert target.canceled == [{**sleeper.to_json(), "folder": folder.path}]


def test_a_late_runner_cannot_claim_a_given_up_attempt(
    home: RunsHome, supervised: Supervised, target: FakeTarget
) -> None:
    folder, supervisor = queued(home), supervised()
    target.presences[folder.run_id] = Presence("gone", "it crashed")
    for _ in range(5):
        supervisor.step()
    assert len(target.started) == 3
    assert folder.state() is RunState.FAILED
    assert not attempts.claim(folder, 1)


def test_the_runner_of_a_killed_supervisor_is_adopted(
    home: RunsHome, supervised: Supervised, target: FakeTarget, sleeper: ProcessIdentity
) -> None:
    folder, supervisor = queued(home), supervised()
    supervisor.step()
    claim_for(folder, 1, sleeper)  # a runner other than the last started one
    target.presences[folder.run_id] = Presence("gone", "it lost the race")
    supervisor.step()
    supervisor.step()
    assert folder.end() is None
    assert attempts.number(folder) == 1
    folder.request(CANCEL)
    supervisor.step()
    assert target.canceled == [{**sleeper.to_json(), "folder": folder.path}]


def test_a_lost_ticket_of_slurm_is_found_in_the_claim(
    home: RunsHome, supervised: Supervised, target: FakeTarget, sleeper: ProcessIdentity
) -> None:
    target.kind = "slurm"  # type: ignore[misc]
    folder = queued(home)
    claim_for(folder, 1, sleeper._replace(host="node1", boot="other"), slurm_job="17")
    folder.request(CANCEL)
    supervised().step()
    assert target.canceled == [{"job": "17"}]


def test_a_full_disk_delays_a_start(
    home: RunsHome, supervised: Supervised, target: FakeTarget
) -> None:
    folder, supervisor = queued(home), supervised()
    target.errors = [OSError(errno.ENOSPC, "full")]
    supervisor.step()
    assert (target.started, folder.state()) == ([], RunState.QUEUED)
    supervisor.step()
    assert target.started == [folder.run_id]


def test_damaged_folders_do_not_stop_others(
    home: RunsHome, supervised: Supervised, target: FakeTarget
) -> None:
    damaged = [queued(home) for _ in range(3)]
    Path(damaged[0].file("end.json")).write_text("{")
    Path(damaged[1].file("spec.json")).write_text("[]")
    Path(damaged[2].file("submitted.json")).write_text("{}")
    write_json(os.path.join(home.folder("experiments"), "e.json"), {"most_active": "many"})
    intact = queued(home)
    supervised().step()
    assert intact.run_id in target.started


def test_a_damaged_dependency_is_awaited(
    home: RunsHome, supervised: Supervised, target: FakeTarget
) -> None:
    first = queued(home)
    second = queued(home, after=(first.run_id,))
    supervisor = supervised()
    supervisor.step()
    Path(first.file("end.json")).write_text("{")
    supervisor.step()
    assert target.started == [first.run_id]
    assert second.state() is RunState.QUEUED


def test_a_damaged_index_does_not_fail_runs(
    home: RunsHome, supervised: Supervised, target: FakeTarget
) -> None:
    first, supervisor = queued(home), supervised()
    supervisor.step()
    index = os.path.join(state_folder(home), "index.db")
    for suffix in ("", "-wal", "-shm"):
        Path(index + suffix).write_bytes(b"x" * 5000)
    second = queued(home)
    for _ in range(3):
        supervisor.step()
        first.record("note")
    assert target.started == [first.run_id, second.run_id]
    assert first.end() is None


def test_the_runner_of_a_deleted_run_is_ended(
    home: RunsHome, supervised: Supervised, target: FakeTarget
) -> None:
    folder, supervisor = queued(home), supervised()
    supervisor.step()
    shutil.rmtree(folder.path)
    assert not supervisor.step()
    assert target.canceled == [{"ticket": folder.run_id}]
    assert os.listdir(os.path.join(home.path, "queue")) == []
    assert os.listdir(os.path.join(home.path, "variables")) == []


def test_a_home_that_is_out_of_reach_ends_nothing(
    home: RunsHome, supervised: Supervised, target: FakeTarget
) -> None:
    folder, supervisor = queued(home), supervised()
    supervisor.step()
    os.rename(home.path, home.path + ".away")
    supervisor.step()
    os.rename(home.path + ".away", home.path)
    supervisor.step()
    assert target.canceled == []
    assert folder.end() is None


def test_runs_of_other_hosts_and_boots(sleeper: ProcessIdentity) -> None:
    restarted = sleeper._replace(boot="earlier")
    elsewhere = restarted._replace(host="elsewhere")
    ended = sleeper._replace(started=1)
    found = [presence_here(Ticket("local", each.to_json())) for each in (restarted, ended)]
    assert [(each.state, each.preempted) for each in found] == [("gone", True)] * 2
    assert presence_here(Ticket("local", elsewhere.to_json())).state == "present"


def test_a_runner_of_another_host_needs_a_heartbeat(
    sleeper: ProcessIdentity, tmp_path: Path
) -> None:
    elsewhere = sleeper._replace(boot="other", host="elsewhere")
    folder = RunFolder(str(tmp_path))
    ticket = Ticket("local", {**elsewhere.to_json(), "folder": folder.path})
    assert presence_here(ticket).state == "present"  # it has not begun
    with Heartbeat(folder):
        assert presence_here(ticket).state == "present"
        old = os.path.getmtime(folder.file("heartbeat")) - 100
        os.utime(folder.file("heartbeat"), (old, old))
        found = presence_here(ticket)
        assert (found.state, found.preempted) == ("gone", True)
        assert mentions(found.reason, "elsewhere")
    assert os.listdir(tmp_path) == []


def test_a_reader_of_the_lock_does_not_stop_a_start(home: RunsHome) -> None:
    descriptor = os.open(lock_path(home), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        wake.start(home)
        time.sleep(1.5)  # it has found the lock taken
    finally:
        os.close(descriptor)
    deadline = time.monotonic() + 20
    while not wake.wake(home) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert wake.running_pid(home)


def test_a_systemd_that_refuses_a_scope_leaves_a_supervisor(
    home: RunsHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "systemd-run"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(wake, "_systemd_prefix", lambda: ["sh", "-c", wake._IN_SCOPE, "sh"])
    wake.start(home)
    deadline = time.monotonic() + 20
    while not wake.wake(home) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert wake.running_pid(home)


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_json(str(tmp_path / "x.json"), {"x": object()})
    assert os.listdir(tmp_path) == []


def test_torn_files_of_dead_processes_are_removed(
    home: RunsHome, supervised: Supervised, sleeper: ProcessIdentity
) -> None:
    folder = queued(home)
    kept, torn = f"a.json.{sleeper.pid}.5.tmp", "a.json.4194305.5.tmp"  # above the largest pid
    for name in (kept, torn):
        Path(folder.file(name)).touch()
    folder.request(CANCEL)
    supervised().step()
    assert os.path.exists(folder.file(kept))
    assert not os.path.exists(folder.file(torn))


@pytest.mark.slow
def test_a_small_chaos_leaves_no_fault(tmp_path: Path) -> None:
    outcome = chaos.trial(runs=10, interval=0.7, seed=2, place=tmp_path, seconds=150.0)
    assert outcome.faults == []
    assert outcome.kills["supervisor"]


def test_the_faults_of_starts_are_found() -> None:
    text = "begin a 1 10 1.0\nbegin a 2 11 1.5\nend a 1 10 2.0\nbegin b 1 12 3.0\n"
    starts = chaos.parsed(text)
    assert starts == [("a", 1, 1.0, 2.0), ("a", 2, 1.5, None), ("b", 1, 3.0, None)]
    (fault,) = chaos.faults_of_starts([*starts, chaos.Start("b", 2, 4.0, None)])
    assert "a" in fault
    (fault,) = chaos.faults_of_starts([chaos.Start("b", 1, 1.0, None)] * 2)
    assert "2" in fault


def test_a_signal_after_a_request_to_cancel_cancels_the_run(home: RunsHome) -> None:
    folder = written_run(home, state=RunState.RUNNING)
    runner = _Runner(home, folder, 1)
    folder.request(CANCEL)  # the supervisor has seen it first, and sends the signal
    state, cause, _ = runner._interrupted(Interrupted(signal.SIGTERM))
    assert (state, cause) == (RunState.CANCELED, CANCEL + "ed")
