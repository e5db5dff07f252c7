"""Spark tasks as places of an elastic job, with a cluster and agents that are simulated."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from farandole.errors import JobFailedError, RendezvousError, SettingsError
from farandole.job.config import Settings
from farandole.job.elastic.membership import Member
from farandole.job.elastic.notices.notice import Notice
from farandole.job.launch.agents.registry import RemoteWorker
from farandole.job.launch.elastic.spark.places import LONGEST, SlotPlan, SparkPlaces
from farandole.job.launch.elastic.spark.slots import Attempt, SlotJobs
from farandole.net.handshake import new_secret
from farandole.net.store import StoreServer
from tests.kits.messages import mentioning, mentions

HOST = "worker"


class Cluster:
    """Spark's jobs of one task each, as ``SlotJobs`` presents them."""

    def __init__(self) -> None:
        self.submitted: list[int] = []
        self.ended: dict[int, str] = {}  # the error by slot
        self.attempts: dict[int, Attempt] = {}  # by the id of the task
        self.leaving: set[str] = set()  # executors
        self.stopped = False
        self.closed_with: set[int] | None = None

    def thread(self, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, name="farandole-spark", daemon=True)

    def prepare(self) -> None: ...

    def submit(self, slot: int) -> None:
        self.ended.pop(slot, None)
        self.submitted.append(slot)

    def has_ended(self, slot: int) -> bool:
        return slot in self.ended

    def error(self, slot: int) -> str:
        return self.ended[slot]

    def attempt(self, stage: int, task: int) -> Attempt:
        return self.attempts.get(task, Attempt())

    def is_leaving(self, executor: str) -> bool:
        return executor in self.leaving

    def close(self, seconds: float, busy: Collection[int]) -> None:
        self.closed_with = set(busy)


class Simulation:
    """The places of a job of two slots, whose first look at the tasks the tests time themselves."""

    def __init__(self, np: int = 2, timeout: float = 1.0) -> None:
        self.cluster = Cluster()
        plan = SlotPlan(np, 2, timeout, "late: {status}", "", "train", "two tasks")
        self.places = SparkPlaces(lambda *_: self.cluster, ("127.0.0.1", ""), plan, Settings())
        self.store: StoreServer = self.places.listen(new_secret())
        for slot in range(2):
            self.cluster.submit(slot)

    def hear(self, task: int, slot: int, executor: str = "0") -> None:
        """The agent of an attempt of a task reports."""
        self.cluster.attempts[task] = Attempt(executor)
        facts = {
            "host": HOST,
            "place": "here",
            "odd": {},
            "gpus": ["7"],
            "cores": 4,
            "python": "python",
            "pid": 1,
            "about": {"slot": slot, "stage": 3},
        }
        self.store.receive(f"agent/{task}/hello", json.dumps(facts).encode())

    def start(self, process: int, task: int) -> RemoteWorker:
        return self.places.start(Member(process, f"{HOST}-task-{task}", 0), ["python", "x"], {})

    def end(self, task: int, code: int) -> None:
        self.store.receive(f"agent/{task}/exit/0", json.dumps({"code": code}).encode())
        self.store.receive(f"agent/{task}/gone/0", b"{}")

    def poll(self, seconds: float = 0.0) -> list[str]:
        """Return the hosts after a look ``seconds`` from now."""
        self.places.poll(time.monotonic() + seconds)
        return list(self.places.find())

    def order(self, task: int, number: int) -> dict[str, Any]:
        """Return the order of this number for the agent of a task."""
        data = self.store.pop(f"agent/{task}/order/{number}")
        assert data is not None
        found: dict[str, Any] = json.loads(data)
        return found

    def lose(self, task: int) -> None:
        """The connection to an agent ends."""
        for lost in self.store.lost:
            lost(f"agent/{task}")


@pytest.fixture
def job() -> Iterator[Simulation]:
    found = Simulation()
    try:
        yield found
    finally:
        found.places.close()
        found.store.close()


def test_attempts_of_tasks_are_hosts(job: Simulation) -> None:
    assert job.poll() == []
    job.hear(12, 0)
    job.hear(11, 1)
    assert job.poll() == ["worker-task-11", "worker-task-12"]
    worker = job.start(0, 12)
    [rank] = job.order(12, 0)["ranks"]
    assert rank["env"]["CUDA_VISIBLE_DEVICES"] == "7"
    assert (rank["slot"][:3], worker.slot.host) == ([0, "worker-task-12", 0], "worker-task-12")


def test_a_failed_process_fails_its_task(job: Simulation) -> None:
    job.hear(1, 0)
    job.poll()
    job.start(0, 1)
    job.end(1, 1)
    assert job.poll() == []
    dismissal = job.order(1, 1)
    assert (dismissal["do"], bool(dismissal["error"])) == ("bye", True)
    job.hear(2, 0)  # Spark's next attempt
    assert job.poll() == ["worker-task-2"]
    assert job.cluster.submitted == [0, 1]


def test_a_process_that_has_finished_keeps_its_task(job: Simulation) -> None:
    job.hear(1, 0)
    job.poll()
    job.start(0, 1)
    job.end(1, 0)
    assert job.poll() == ["worker-task-1"]
    assert job.store.pop("agent/1/order/1") is None


def test_a_decommissioned_executor_is_left(
    job: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    job.hear(1, 0, "4")
    job.hear(2, 1, "4")
    job.poll()
    job.start(0, 1)
    job.cluster.leaving.add("4")
    assert job.poll() == []
    assert mentions(caplog.messages, "worker-task-1", "4")
    assert job.order(2, 0) == {"do": "bye", "error": ""}, "no process waits there"
    assert job.store.pop("agent/1/order/1") is None, "its process leaves at a commit"
    job.end(1, 0)
    job.poll()
    assert job.order(1, 1) == {"do": "bye", "error": ""}
    job.cluster.ended = {0: "", 1: ""}
    job.poll()
    assert job.cluster.submitted == [0, 1, 0, 1]


def test_a_lost_task_is_explained_by_spark(job: Simulation) -> None:
    for task in (1, 2):
        job.hear(task, task - 1)
    job.poll()
    worker = job.start(0, 1)
    for task in (1, 2):
        job.lose(task)
    assert job.poll() == []
    assert worker.poll() is None
    job.cluster.attempts[1] = Attempt("0", "ExecutorLostFailure (executor 0 exited)")
    job.poll()
    assert worker.poll() is not None
    outcome = job.store.pop("outcome/0")
    assert outcome is not None
    assert "ExecutorLostFailure (executor 0 exited)" in bytes(outcome).decode()


def test_a_stopped_session_is_asked_nothing(
    job: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> bool:
        raise ConnectionRefusedError

    for task in (1, 2):
        job.hear(task, task - 1)
    job.poll()
    worker = job.start(1, 2)
    job.cluster.stopped = True
    for question in ("attempt", "has_ended", "is_leaving", "submit"):
        monkeypatch.setattr(job.cluster, question, ask)
    job.lose(2)
    assert job.poll() == [f"{HOST}-task-1"]
    assert worker.poll() is not None  # although its neighbour is still there


def test_a_session_is_stopped_by_its_driver_as_well() -> None:
    def jobs(spark: Any) -> SlotJobs:
        context = SimpleNamespace(_jsc=spark and SimpleNamespace(sc=lambda: spark))
        return SlotJobs(context, lambda slot: lambda rows: rows, "job", "description")

    assert not jobs(SimpleNamespace(isStopped=lambda: False)).stopped
    assert jobs(SimpleNamespace(isStopped=lambda: True)).stopped  # after SIGTERM to its JVM
    assert jobs(SimpleNamespace()).stopped  # a gateway that fails
    assert jobs(None).stopped


def test_a_job_that_has_failed_too_often_is_submitted_again(job: Simulation) -> None:
    job.hear(1, 0)
    job.poll()
    job.cluster.ended = {0: "Task 0 failed 4 times"}
    job.poll()
    assert job.cluster.submitted == [0, 1, 0]
    for pause in (2.0, 4.0):  # now no attempt reports
        job.cluster.ended = {0: "no such file: python"}
        job.poll()
        before = len(job.cluster.submitted)
        job.poll(pause - 1.0)
        assert len(job.cluster.submitted) == before
        job.poll(pause + 1.0)
        assert len(job.cluster.submitted) == before + 1


def test_excluded_executors_are_not_asked_again_soon(job: Simulation) -> None:
    job.hear(1, 0)
    job.poll()
    job.cluster.ended = {0: "cannot run anywhere due to node and executor excludeOnFailure."}
    job.poll(LONGEST - 1.0)
    job.poll(LONGEST - 1.0)
    assert job.cluster.submitted == [0, 1]


def test_notices_are_passed_on(job: Simulation) -> None:
    heard: list[tuple[str, Notice]] = []
    job.places.watch_notices("SIGUSR1", lambda host, notice: heard.append((host, notice)))
    job.hear(1, 0)
    job.poll()
    job.start(0, 1)
    assert job.order(1, 0)["notices"] == ["worker-task-1", "SIGUSR1"]
    job.store.receive("agent/1/notice", Notice("SIGUSR1").to_bytes())
    assert heard == [("worker-task-1", Notice("SIGUSR1"))]


def test_the_start_waits_for_tasks(job: Simulation) -> None:
    job.hear(1, 0)
    with pytest.raises(RendezvousError, match=mentioning("1 of 2")):
        job.places.await_slots()
    assert job.cluster.submitted == [0, 1, 0, 1]
    job.hear(2, 1)
    job.cluster.closed_with = None


def test_tasks_that_fail_immediately_end_the_start() -> None:
    job = Simulation(timeout=60.0)
    try:
        job.cluster.submit = lambda slot: job.cluster.ended.update(  # type: ignore[method-assign]
            {slot: "[PYTHON_VERSION_MISMATCH] 3.9"}
        )
        with pytest.raises(JobFailedError, match=mentioning("PYTHON_VERSION_MISMATCH", "3.9")):
            job.places.await_slots()
    finally:
        job.places.close()
        job.store.close()
    assert job.cluster.closed_with == set()


def test_the_end_waits_for_tasks_with_an_agent() -> None:
    job = Simulation(np=1)
    job.hear(1, 1)
    job.places.await_slots()
    job.places.close()
    job.store.close()
    assert job.cluster.closed_with == {1}


def test_encryption_is_refused() -> None:
    plan = SlotPlan(1, 1, 1.0, "", "", "train", "a task")
    places = SparkPlaces(lambda *_: Cluster(), ("127.0.0.1", ""), plan, Settings())
    with pytest.raises(SettingsError, match=mentioning("tls")):
        places.listen(new_secret(tls=True))
