"""The driver's loop of an elastic job, with simulated processes."""

from __future__ import annotations

import contextlib
import io
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from farandole.errors import CommitDirError, DataError, JobFailedError, SettingsError
from farandole.job.config import Settings
from farandole.job.elastic.decisions import GiveUp
from farandole.job.elastic.discovery import FunctionDiscovery
from farandole.job.elastic.membership import Member
from farandole.job.elastic.options import ElasticOptions
from farandole.job.elastic.plan import ElasticPlan
from farandole.job.launch.display import Display
from farandole.job.launch.elastic.places import slot_of
from farandole.job.launch.elastic.watch import ElasticWatch, cure
from farandole.job.launch.explain.events import Event
from farandole.job.launch.job import Job
from farandole.job.launch.output import OutputStreams
from farandole.job.report import keys
from farandole.job.report.outcome import Outcome
from farandole.net.handshake import new_secret
from farandole.net.store import StoreServer
from farandole.net.store.frames import Value
from tests.kits.messages import mentioning, mentions


class Simulated:
    """A process that does nothing until it is ended with ``code``."""

    stdout = stderr = None
    ended = 0.0

    def __init__(self, member: Member) -> None:
        self.slot = slot_of(member)
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def alive(self) -> bool:
        return self.code is None

    def activity(self) -> str:
        return "sleeping"

    def signal(self, number: int) -> None: ...

    def terminate(self) -> None:
        if self.code is None:
            self.code = -15

    kill = terminate

    def finish(self) -> None:
        self.code = 0


class Store(StoreServer):
    """A store that notes the number of the present membership whenever a membership is set."""

    def __init__(self) -> None:
        super().__init__(new_secret())
        self.numbers: dict[str, Value | None] = {}
        self.on_change: Callable[[], None] = lambda: None  # called after the second membership

    def set(self, key: str, value: Value) -> None:
        if key in (keys.membership(1), keys.membership(2)):
            self.numbers[key] = self.wait(keys.NOW, 0.0)
        super().set(key, value)
        if key == keys.membership(2):
            self.on_change()


class Simulation:
    """An elastic job of simulated processes.

    ``react``: called before each start, with the simulation and the process to start.
    """

    remote = False
    name: ClassVar[str] = "simulated"

    def __init__(self, react: Callable[[Simulation, Member], None], settings: Settings) -> None:
        self.store = Store()
        self.workers: list[Simulated] = []
        self.listed: deque[dict[str, int]] = deque()
        self._react, self._said = react, io.StringIO()
        self._job = Job(np=1, settings=settings, display=Display(say=self._said))

    @property
    def said(self) -> str:
        return self._said.getvalue()

    def listen(self, secret: str) -> StoreServer:
        return self.store

    def start(self, member: Member, command: Sequence[str], env: Mapping[str, str]) -> Simulated:
        self._react(self, member)
        self.workers.append(Simulated(member))
        return self.workers[-1]

    def close(self) -> None:
        self.store.close()

    def run(self, options: ElasticOptions, hosts: dict[str, int]) -> None:
        plan = ElasticPlan(options, FunctionDiscovery(lambda: hosts))
        streams = OutputStreams(1, io.StringIO(), io.StringIO())
        with ElasticWatch(self._job, self.store, streams, self, self.listed) as watch:
            watch.run(plan, hosts, [], {})


@pytest.fixture
def simulate() -> Iterator[Callable[..., Simulation]]:
    with contextlib.ExitStack() as stack:

        def make(react: Callable[[Simulation, Member], None], **changes: Any) -> Simulation:
            made = Simulation(react, Settings(**changes))
            stack.callback(made.close)
            return made

        yield make


TWO = ElasticOptions(np=2, min_np=1, max_np=3)


def test_a_host_that_starts_no_process_is_tolerated(
    simulate: Callable[..., Simulation], caplog: pytest.LogCaptureFixture
) -> None:
    def react(job: Simulation, member: Member) -> None:
        job.listed.append({"localhost": 2, "other": 1})
        if member.host == "other":
            for worker in job.workers:
                worker.code = 0
            raise SettingsError("no way to other")

    job = simulate(react)
    job.run(TWO, {"localhost": 2})
    assert [worker.slot.host for worker in job.workers] == ["localhost"] * 2
    assert any(mentions(text, "other", "no way") for text in caplog.messages)


def test_the_first_start_has_to_succeed(simulate: Callable[..., Simulation]) -> None:
    def react(job: Simulation, member: Member) -> None:
        if job.workers:
            raise SettingsError("no way")

    with pytest.raises(SettingsError, match=mentioning("no way")):
        simulate(react).run(TWO, {"localhost": 2})


def test_a_woken_rank_finds_the_new_number(simulate: Callable[..., Simulation]) -> None:
    def react(job: Simulation, member: Member) -> None:
        job.listed.append({"localhost": 1, "other": 1})
        for worker in job.workers:
            worker.code = 0

    job = simulate(react)
    job.run(TWO._replace(np=1), {"localhost": 1})
    assert job.store.numbers == {keys.membership(1): b"1"}


def test_a_rank_that_hangs_is_named_and_ended(simulate: Callable[..., Simulation]) -> None:
    def react(job: Simulation, member: Member) -> None:
        job.listed.append({"localhost": 1, "other": 1, "third": 1})
        if member.host == "third":
            job.store.on_change = job.workers[0].finish
            job.store.receive("ready/0", b"[1, 0, []]")

    job = simulate(react)
    job.run(TWO._replace(warning=0.01, patience=0.05), {"localhost": 1, "other": 1})
    assert [worker.code for worker in job.workers[:2]] == [0, -15]
    assert mentions(
        [job.said], "rank 1 on other", "sleeping", "--stall-check-shutdown-time-seconds"
    )


def test_a_failed_job_names_the_rank_that_hung(simulate: Callable[..., Simulation]) -> None:
    def react(job: Simulation, member: Member) -> None:
        if member.process == 1:
            job.store.receive("ready/0", b"[1, 0, []]")

    options = ElasticOptions(np=2, min_np=2, timeout=0.05, patience=0.05)
    with pytest.raises(JobFailedError, match=mentioning("rank 1 on other", "2")):
        simulate(react).run(options, {"localhost": 1, "other": 1})


def test_a_failed_rank_that_does_not_end_is_the_cause(
    simulate: Callable[..., Simulation],
) -> None:
    def react(job: Simulation, member: Member) -> None:
        if member.process == 1:
            error = Outcome.of(ValueError("the labels are missing"))
            job.store.receive(keys.outcome(1), error.to_bytes())
            job.store.receive("ready/0", b"[1, 0, []]")

    options = ElasticOptions(np=2, min_np=2, timeout=0.05, patience=0.05)
    with pytest.raises(JobFailedError, match=mentioning("Rank 1", "labels")) as caught:
        simulate(react).run(options, {"localhost": 1, "other": 1})
    assert (caught.value.rank, caught.value.host) == (1, "other")


def test_ranks_that_continue_after_the_end_are_named(simulate: Callable[..., Simulation]) -> None:
    def react(job: Simulation, member: Member) -> None:
        job.listed.append({"localhost": 1, "other": 1, "third": 1})
        if member.host == "third":
            job.workers[0].finish()

    job = simulate(react, stall_warning_seconds=0.05, stall_shutdown_seconds=0.2)
    with pytest.raises(JobFailedError, match=mentioning("rank 1", "rank 0", "sleeping")) as caught:
        job.run(TWO, {"localhost": 1, "other": 1})
    assert (caught.value.rank, caught.value.host) == (1, "other")
    assert mentions(job.said, "rank 0", "rank 1")


def test_a_rank_killed_after_its_function_names_the_signal(
    simulate: Callable[..., Simulation],
) -> None:
    def react(job: Simulation, member: Member) -> None:
        if member.process == 1:
            job.store.receive(keys.outcome(0), Outcome("ok").to_bytes())
            job.workers[0].code = -9
        if member.process == 2:
            job.workers[1].finish()

    job = simulate(react)
    with pytest.raises(JobFailedError, match=mentioning("SIGKILL")):
        job.run(ElasticOptions(np=2, min_np=2, timeout=0.05), {"localhost": 2})
    assert mentions(job.said, "rank 0 on localhost", "SIGKILL")


def test_a_refusal_of_the_folder_has_its_own_cure() -> None:
    decision = GiveUp("no rank is left", "Start again with the same --commit-dir")
    other, refused = (
        Event(0, Outcome.of(kind("unusable"))) for kind in (DataError, CommitDirError)
    )
    assert mentions(cure(decision, [other, Event(1, code=1)]), "--commit-dir")
    assert cure(decision, [other, refused]) == ""
    assert cure(GiveUp("no rank is left"), [other]) == ""
