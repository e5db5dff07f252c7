"""The slots of an elastic job on Spark: Spark jobs of one task each.

A job for each slot, because Spark ends all tasks of a job if one of them has failed too often
(``spark.task.maxFailures``).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from farandole.job.launch.launchers.spark.cluster import (
    STOPPED,
    SparkCluster,
    reason,
    task_function,
)

LOOK = 0.05  # seconds between two checks of jobs that are ending
CANCEL = 10.0  # seconds for cancelled jobs to end
MOST_ATTEMPTS = 1 << 30  # of one task


class Attempt(NamedTuple):
    """Spark's record of an attempt of a task: its executor, and the error with which it ended."""

    executor: str = ""
    error: str = ""


class SlotJobs:
    """The Spark jobs for the slots of one elastic job.

    ``task(slot)`` returns the function of a slot's task. ``name`` is the jobs' tag, and their group
    if the caller has none.
    """

    def __init__(
        self,
        context: Any,
        task: Callable[[int], Callable[[Iterator[Any]], Iterator[Any]]],
        name: str,
        description: str,
    ) -> None:
        self._context = context
        self._task = task
        self._name = name
        self._description = description
        self._futures: dict[int, Any] = {}  # by slot

    def thread(self, target: Callable[[], None]) -> threading.Thread:
        """Return a thread that submits jobs with the caller's local properties, such as its
        scheduler pool.
        """
        from pyspark import InheritableThread

        thread: threading.Thread = InheritableThread(
            target=target, name="farandole-spark", daemon=True
        )
        return thread

    def prepare(self) -> None:
        """Mark the jobs that the current thread will submit."""
        group = self._context.getLocalProperty("spark.jobGroup.id") or self._name
        self._context.setJobGroup(group, self._description, interruptOnCancel=False)
        self._context.addJobTag(self._name)

    def submit(self, slot: int) -> None:
        """Submit a job for ``slot``; Spark starts its task as soon as an executor has room."""
        tasks = self._context.parallelize([slot], 1).mapPartitions(self._task(slot))
        self._futures[slot] = tasks._jrdd.collectAsync()

    def has_ended(self, slot: int) -> bool:
        return bool(self._futures[slot].isDone())

    def error(self, slot: int) -> str:
        """Return why the ended job of ``slot`` has failed; empty if it has not."""
        try:
            self._futures[slot].get()
        except Exception as error:  # of the gateway
            return self._reason(error)
        return ""

    def attempt(self, stage: int, task: int) -> Attempt:
        """Return Spark's record of the task attempt with the id ``task``."""
        store = self._context._jsc.sc().statusStore()
        with contextlib.suppress(Exception):  # NoSuchElementException before it is recorded
            found = store.taskList(stage, 0, MOST_ATTEMPTS)
            for index in range(found.size()):
                data = found.apply(index)
                if data.taskId() == task:
                    error = data.errorMessage()
                    text = str(error.get()) if error.isDefined() else ""
                    return Attempt(str(data.executorId()), text.strip().partition("\n")[0])
        return Attempt()

    def is_leaving(self, executor: str) -> bool:
        """Return whether Spark is decommissioning ``executor``, which gets no new tasks."""
        return bool(self._context._jsc.sc().taskScheduler().isExecutorDecommissioned(executor))

    @property
    def stopped(self) -> bool:
        """True if the session was stopped, here or by the end of Spark's driver."""
        if self._context._jsc is None:
            return True
        try:
            return bool(self._context._jsc.sc().isStopped())
        except Exception:  # of the gateway, after the end of its JVM
            return True

    def close(self, seconds: float, busy: Collection[int]) -> None:
        """Wait ``seconds`` for the tasks of the slots in ``busy``, then cancel the remaining
        ones.
        """
        if self.stopped:
            return
        with contextlib.suppress(Exception):  # the gateway may be gone
            for slot, future in self._futures.items():
                if slot not in busy:
                    future.cancel(True)
            self._await(seconds)
            self._context.cancelJobsWithTag(self._name)
            self._await(CANCEL)

    def _await(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if all(future.isDone() for future in self._futures.values()):
                return
            time.sleep(LOOK)

    def _reason(self, error: Exception) -> str:
        why = reason(error)
        return STOPPED if self.stopped or "SparkContext was shut down" in why else why


def slot_jobs(
    cluster: SparkCluster, facts: dict[str, Any], name: str, description: str
) -> SlotJobs:
    """Return the jobs of ``cluster`` whose tasks run an agent with the instructions ``facts``."""
    return SlotJobs(cluster.context, lambda slot: task_function(facts, slot), name, description)
