"""The Spark launcher: each rank is a process next to a barrier task, which runs an agent.

This module imports pyspark only when a job starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from farandole.errors import SettingsError, counted
from farandole.job.config import Placement
from farandole.job.launch.contract import JobRequest

if TYPE_CHECKING:
    from farandole.job.launch.agents.allocation import AgentAllocation

START_TIMEOUT = 600.0  # seconds to wait for the tasks; HOROVOD_SPARK_START_TIMEOUT
LATE = (
    "Timed out waiting for {activity}. Please check that you have enough resources to run all"
    " Horovod processes. Each Horovod process runs in a Spark task. You may need to increase"
    " {setting} to a larger value if your Spark resources are allocated on-demand."
)
VARIABLE = "HOROVOD_SPARK_START_TIMEOUT"  # an environment variable of the driver; seconds
FAILED = "Spark job has failed, see the error above."


class SparkLauncher:
    """The launcher for Spark.

    ``create``: start a session if there is none. ``python``: the ranks' interpreter on the
    executors, by default the one of Spark's tasks. ``start_timeout``: seconds to wait for all
    tasks; ``setting`` is the users' name for it. ``log``: ``to_log`` adds to the first task's log.
    """

    name: ClassVar[str] = "spark"

    def __init__(
        self,
        *,
        title: str = "",
        create: bool = False,
        python: str = "",
        start_timeout: float | None = None,
        setting: str = f"{VARIABLE} (seconds; now {{seconds:g}})",
        log: bool = False,
    ) -> None:
        self.title = title
        self._create = create
        self.python = python
        self._log = log
        self._has_timeout = start_timeout is not None
        if start_timeout is None:
            start_timeout = float(os.environ.get(VARIABLE) or START_TIMEOUT)
        self.start_timeout = start_timeout
        self.setting = setting
        self._cluster: Any = None
        self._allocation: AgentAllocation | None = None

    def affinity(self, request: JobRequest) -> int:
        return 0  # an existing session does not mean that the job should use it

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        return Placement.from_env(env) if "FARANDOLE_RANK" in env else None

    def default_parallelism(self) -> int:
        """Return Spark's default number of tasks."""
        return int(self.cluster().default_parallelism)

    def all_slots(self) -> int:
        """Return how many ranks fit; waits for the first executor."""
        return int(self.cluster().await_slots(1, self.start_timeout))

    def check(self, np: int) -> None:
        """Raise SettingsError if ``np`` ranks can never start together."""
        self.cluster().check(np)

    def cluster(self) -> Any:
        """Return the Spark application, started if needed. Raises SettingsError."""
        if self._cluster is None:
            from farandole.job.launch.launchers.spark.cluster import SparkCluster

            self._cluster = SparkCluster.active(self._create)
        return self._cluster

    def allocate(self, request: JobRequest) -> AgentAllocation:
        # Imported here because local jobs load this file too.
        from farandole.job.launch.agents.allocation import AgentAllocation, AgentPlace

        if request.hosts is not None:
            raise SettingsError(
                f"hosts={request.hosts!r}: the launcher spark takes its hosts from the"
                " cluster; leave hosts out"
            )
        timeout = (
            self.start_timeout
            if self._has_timeout
            else max(self.start_timeout, request.start_timeout)
        )
        slots = self.cluster().await_slots(request.np, timeout)
        title = self.title or request.title
        tasks = counted(request.np, "Spark task")
        where = f"{tasks} for {title}; {self._cluster.describe(slots)}"
        setting = self.setting.format(seconds=timeout)
        stage = Tasks(self._cluster, request.np, title, where, setting, self.python)
        self._allocation = AgentAllocation(
            stage, [AgentPlace(1)] * request.np, timeout, log=self._log
        )
        return self._allocation

    def to_log(self, text: str) -> None:
        """Add to the first task's log."""
        if self._allocation is not None:
            self._allocation.to_log(text)


class Tasks:
    """The ``AgentCluster`` of a Spark job: one barrier stage, described by ``where``."""

    noun, private = "Spark task", False

    def __init__(
        self, cluster: Any, np: int, title: str, where: str, setting: str, python: str
    ) -> None:
        self.python = python
        self._cluster = cluster
        self._np = np
        self.title = title
        self._where = where
        self.setting = setting
        self._stage: Any = None

    def describe(self) -> str:
        return self._where

    def address(self) -> tuple[str, str]:
        addresses: tuple[str, str] = self._cluster.addresses()
        return addresses

    def unreachable(self, host: str) -> str:
        return (
            "spark.driver.bindAddress, or spark.driver.host, must name an interface of this"
            " machine that the executors can reach"
        )

    def start(self, facts: Mapping[str, Any]) -> None:
        description = f"{self.title} on {counted(self._np, 'rank')} (Farandole)"
        name = f"farandole-{os.urandom(6).hex()}"
        self._stage = self._cluster.submit(self._np, dict(facts), name, description)

    def absent(self, agents: Sequence[int]) -> str:
        return f"{self._stage.reason() or 'a task ended'}\n{FAILED}" if self._stage.ended else ""

    def gone(self, agent: int) -> str | None:
        return self._stage.reason() if self._stage is not None and self._stage.ended else None

    def late(self, agents: Sequence[int], status: str) -> str:
        return LATE.format(activity=f"Spark tasks to start ({status})", setting=self.setting)

    def close(self, seconds: float) -> None:
        if self._stage is not None:
            self._stage.close(seconds)
