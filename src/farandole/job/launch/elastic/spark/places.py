"""Spark tasks as the places of an elastic job: each attempt of a task is a host with one slot.

The tasks wait for a process. A task whose process has failed fails, too, so that Spark's own rules
decide where it is tried again (``spark.excludeOnFailure``). A task that ends in any other way is
submitted again.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from farandole.base.log import logger
from farandole.errors import (
    JobFailedError,
    RendezvousError,
    SettingsError,
    counted,
)
from farandole.job.config import Settings
from farandole.job.elastic.discovery.function import FunctionDiscovery
from farandole.job.elastic.membership import Member
from farandole.job.elastic.notices.notice import Notice
from farandole.job.elastic.options import ElasticOptions
from farandole.job.launch.agents.allocation import CHOICES, CONTACT, TIDY, visible
from farandole.job.launch.agents.registry import AgentInfo, AgentRegistry, RemoteWorker
from farandole.job.launch.contract import JobRequest
from farandole.job.launch.elastic.places import OnNotice, slot_of
from farandole.job.launch.elastic.spark.slots import Attempt, slot_jobs
from farandole.job.launch.launchers.spark import FAILED, LATE, SparkLauncher
from farandole.job.launch.launchers.spark.cluster import STOPPED, reason
from farandole.net.handshake import encrypted
from farandole.net.store import StoreServer, Value

LOOK = 0.5  # seconds between two checks of the tasks
LONGEST = 60.0  # seconds until a slot whose job fails immediately is submitted again
MOST_TASKS = 1 << 62  # task ids count all tasks of the application
EXCLUDED = "excludeOnFailure"  # in Spark's error if no executor may run a task


class Jobs(Protocol):
    """The methods of ``SlotJobs`` that the places use."""

    @property
    def stopped(self) -> bool: ...
    def thread(self, target: Callable[[], None]) -> threading.Thread: ...
    def prepare(self) -> None: ...
    def submit(self, slot: int) -> None: ...
    def has_ended(self, slot: int) -> bool: ...
    def error(self, slot: int) -> str: ...
    def attempt(self, stage: int, task: int) -> Attempt: ...
    def is_leaving(self, executor: str) -> bool: ...
    def close(self, seconds: float, busy: Collection[int]) -> None: ...


JobsOf = Callable[[dict[str, Any], str, str], Jobs]


class SlotPlan(NamedTuple):
    """The tasks of an elastic job.

    - ``np``: The number of tasks to wait for at the start.
    - ``most``: The number of slots; Spark starts their tasks where it has room.
    - ``timeout``: Seconds to wait for ``np`` tasks.
    - ``late``: The error message after that time; ``{status}`` is the number of tasks.
    - ``python``: The interpreter of the ranks; empty for the interpreter of Spark's tasks.
    - ``title``: The name of the program or function.
    - ``where``: A description for the user.
    """

    np: int
    most: int
    timeout: float
    late: str
    python: str
    title: str
    where: str


class _Host:
    """One attempt of a task, which is a host of the job.

    ``index``: its task id in Spark, which is the number of its agent.
    """

    def __init__(self, index: int, agent: AgentInfo) -> None:
        self.index = index
        self.name = f"{agent.host}-task-{index}"
        self.gpus = agent.gpus
        self.slot = int(agent.about["slot"])
        self.stage = int(agent.about["stage"])
        self.executor = ""
        self.worker: RemoteWorker | None = None
        self.leaves = False  # Spark is decommissioning its executor

    def is_lost(self, registry: AgentRegistry) -> bool:
        worker = self.worker
        return self.index in registry.lost or (worker is not None and worker.lost_at is not None)


class _Retries:
    """The pauses before a slot's job is submitted again: none, or longer ones after each job in a
    row that failed before its task had reported.
    """

    def __init__(self) -> None:
        self.has_reported = False  # an attempt of the current job
        self.until = 0.0  # the end of the current pause; 0: there is none
        self._failures = 0

    def report(self) -> None:
        self.has_reported, self._failures = True, 0

    def pause(self, error: str, now: float) -> None:
        """Begin a pause after a job's ``error``: the longest one if Spark has no executor for this
        task.
        """
        self._failures += 1
        long = EXCLUDED in error
        self.until = now + (LONGEST if long else min(LONGEST, 2.0 ** min(self._failures, 30)))


class SparkPlaces:
    """The tasks of ``jobs`` as hosts of an elastic job, and the discovery of these hosts.

    ``jobs`` returns the Spark jobs for the instructions of their agents, the jobs' tag and their
    description. ``addresses``: the interface to listen on, and the name that executors use for it.
    """

    remote = True
    name: ClassVar[str] = "spark"

    def __init__(
        self, jobs: JobsOf, addresses: tuple[str, str], plan: SlotPlan, settings: Settings
    ) -> None:
        self._jobs_of, self._addresses = jobs, addresses
        self._plan, self._settings = plan, settings
        self._sources = ""  # of preemption notices
        self._jobs: Jobs
        self._registry: AgentRegistry
        self._hosts: dict[int, _Host] = {}  # the attempts that run, by the number of the agent
        self._by_name: dict[str, _Host] = {}
        self._lost: list[_Host] = []  # tasks whose loss Spark has not explained yet
        self._reasons: dict[int, str] = {}  # of losses, by the number of the agent
        self._seen: set[int] = set()  # agents that have reported
        self._retries = {slot: _Retries() for slot in range(plan.most)}
        self._trouble = ""  # the error of a job, until an attempt has reported
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def describe(self) -> str:
        return self._plan.where

    def discovery(self) -> FunctionDiscovery:
        return FunctionDiscovery(self.find)

    def find(self) -> dict[str, int]:
        """Return the attempts that may have a rank, with one slot each, in the order of Spark's
        task ids.
        """
        hosts = sorted(self._hosts.values(), key=lambda host: host.index)
        return {host.name: 1 for host in hosts if not host.leaves}

    def listen(self, secret: str) -> StoreServer:
        if encrypted(secret):
            raise SettingsError(
                "tls is not available for elastic jobs on Spark: leave out FARANDOLE_TLS, or start"
                " a job of a fixed size"
            )
        interface, address = self._addresses
        try:
            store = StoreServer(secret, interface, advertise=address)
        except OSError as error:
            raise SettingsError(
                f"the driver cannot listen on {interface!r} ({error}): spark.driver.bindAddress, or"
                " spark.driver.host, must name an interface of this machine that the executors can"
                " reach"
            ) from error
        watched = not self._settings.stall_check_disable
        patience = self._settings.stall_shutdown_seconds if watched else 0.0
        self._registry = AgentRegistry(
            store, (), MOST_TASKS, self._reasons.get, "Spark task", patience
        )
        facts = {"address": store.address, "secret": secret, "timeout": CONTACT}
        ranks = counted(self._plan.most, "rank")
        self._jobs = self._jobs_of(
            facts,
            f"farandole-{os.urandom(6).hex()}",
            f"{self._plan.title} on up to {ranks} (Farandole)",
        )
        return store

    def await_slots(self) -> None:
        """Submit the tasks, and wait until ``np`` of them run.

        Raises RendezvousError if they do not run in time, and JobFailedError if they fail.
        """
        self._thread = self._jobs.thread(self._watch)
        self._thread.start()
        deadline = time.monotonic() + self._plan.timeout
        while (there := len(self.find())) < self._plan.np:
            if self._trouble:
                raise JobFailedError(f"{self._trouble}\n{FAILED}")
            if time.monotonic() > deadline:
                status = f"{there} of {self._plan.np} Spark tasks started"
                raise RendezvousError(self._plan.late.format(status=status))
            time.sleep(LOOK / 5)

    def watch_notices(self, sources: str, on_notice: OnNotice) -> None:
        self._sources = sources

        def hear(agent: int, data: Value) -> None:
            host = self._hosts.get(agent)
            if host is not None:
                on_notice(host.name, Notice.from_bytes(data))

        self._registry.on_notice = hear

    def start(self, member: Member, command: Sequence[str], env: Mapping[str, str]) -> RemoteWorker:
        host = self._by_name[member.host]
        chosen = {name: os.environ[name] for name in CHOICES if name in os.environ}
        order: dict[str, object] = {
            "command": list(command[1:]),
            "python": self._plan.python,
            "log": False,
        }
        if self._sources:
            order["notices"] = [member.host, self._sources]
        own = {**chosen, **env, **visible([host.gpus], 0)}
        host.worker = self._registry.add(host.index, slot_of(member), own, order)
        return host.worker

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self._registry.dismiss()
        if self._thread is not None:
            self._jobs.close(TIDY, {host.slot for host in self._hosts.values()})
        self._registry.close()

    # ---- the thread that watches the tasks ----

    def _watch(self) -> None:
        try:
            self._jobs.prepare()
            for slot in range(self._plan.most):
                self._jobs.submit(slot)
        except Exception as error:  # of the session, which may have been stopped
            self._trouble = STOPPED if self._jobs.stopped else _one_line(error)
            return
        failing = False
        while not self._closing.wait(LOOK):
            try:
                self.poll(time.monotonic())
                failing = False
            except Exception as error:  # the gateway's
                if not (failing or self._jobs.stopped or self._closing.is_set()):
                    logger.warning(
                        "Spark does not answer at the moment (%s). The job continues with the known"
                        " tasks, and asks again",
                        _one_line(error),
                    )
                failing = True

    def poll(self, now: float) -> None:
        """Check all tasks once: record those that have reported or were lost, dismiss those that
        can no longer have a rank, and submit slots again.
        """
        for index, agent in list(self._registry.agents.items()):
            if index not in self._seen:
                self._seen.add(index)
                host = _Host(index, agent)
                self._retries[host.slot].report()
                self._by_name[host.name] = host
                self._hosts[index] = host
        stopped = self._jobs.stopped
        for host in list(self._hosts.values()):
            if host.is_lost(self._registry):
                del self._hosts[host.index]
                self._lost.append(host)
            elif not stopped:
                self._look_at(host)
        self._explain_losses()
        if stopped:
            return
        for slot, retries in self._retries.items():
            if self._jobs.has_ended(slot):
                self._submit_again(slot, retries, now)

    def _look_at(self, host: _Host) -> None:
        worker = host.worker
        if not host.executor:
            host.executor = self._jobs.attempt(host.stage, host.index).executor
        if host.executor and not host.leaves and self._jobs.is_leaving(host.executor):
            host.leaves = True
            notice = Notice(f"Spark is decommissioning executor {host.executor}")
            logger.warning("%s", notice.describe(host.name))
        if host.leaves and (worker is None or worker.code is not None):
            self._send_away(host, "")
        elif worker is not None and worker.code:
            self._send_away(host, f"process {worker.slot.rank} of the elastic job has failed")

    def _send_away(self, host: _Host, error: str) -> None:
        del self._hosts[host.index]
        self._registry.dismiss_one(host.index, error)

    def _explain_losses(self) -> None:
        for host in list(self._lost):
            if self._jobs.stopped:
                self._reasons[host.index] = STOPPED
            elif why := self._jobs.attempt(host.stage, host.index).error:
                self._reasons[host.index] = why
            else:
                continue
            self._lost.remove(host)

    def _submit_again(self, slot: int, retries: _Retries, now: float) -> None:
        """Submit the ended job of a slot again: now, or after a pause."""
        if retries.until:
            if now < retries.until:
                return
        elif error := self._jobs.error(slot):
            if not self._seen:
                self._trouble = error
            if EXCLUDED in error or not retries.has_reported:
                retries.pause(error, now)
                return
        retries.until, retries.has_reported = 0.0, False
        self._jobs.submit(slot)


def _one_line(error: Exception) -> str:
    """Return the type and the cause of an error, without stack traces."""
    return f"{type(error).__name__}: {reason(error).partition(chr(10))[0]}"


def spark_places(
    launcher: SparkLauncher, options: ElasticOptions, request: JobRequest
) -> SparkPlaces:
    """Return the tasks on which the processes of an elastic job start.

    Raises SettingsError if there is no session, or too few executors for ``options.np``.
    """
    if request.hosts is not None or request.settings.host_discovery_script:
        raise SettingsError(
            "the launcher spark finds the hosts of an elastic job itself: leave out"
            f" {request.hosts or request.settings.host_discovery_script!r}"
        )
    cluster = launcher.cluster()
    cluster.check_size(options.np)
    most = options.max_np or max(options.np, cluster.slots())
    title = launcher.title or request.title
    seconds = options.start_timeout or launcher.start_timeout
    plan = SlotPlan(
        np=options.np,
        most=most,
        timeout=seconds,
        late=LATE.format(
            activity="Spark tasks to start ({status})",
            setting=launcher.setting.format(seconds=seconds),
        ),
        python=launcher.python,
        title=title,
        where=f"up to {counted(most, 'Spark task')} for {title} on {cluster.master}",
    )
    jobs = functools.partial(slot_jobs, cluster)
    return SparkPlaces(jobs, cluster.addresses(), plan, request.settings)
