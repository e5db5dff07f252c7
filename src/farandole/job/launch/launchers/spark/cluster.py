"""A SparkContext as a cluster: its resources, and a barrier stage."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from farandole.base.log import logger
from farandole.errors import SettingsError, counted
from farandole.job.launch import launcher_env
from farandole.job.launch.agents import boot
from farandole.job.launch.agents.bundle import bundle
from farandole.job.spark import session
from farandole.job.spark.guard import FILES

NO_CONTEXT = "Could not find an active SparkContext, are you running in a PySpark session?"
STOPPED = "the Spark session was stopped"
NOTICE = 3.0  # seconds before the wait for executors is reported
LOOK = 0.1
_BOOT = Path(boot.__file__)
# Variables of Spark's own Python, which ranks do not inherit.
PRIVATE = ("PYTHON_WORKER_FACTORY", "_PYSPARK_")


class SparkCluster:
    """The Spark application of this process."""

    def __init__(self, context: Any) -> None:
        self.context = self._context = context
        self._conf = context.getConf()

    @classmethod
    def active(cls, create: bool = False) -> SparkCluster:
        """Return the running application; ``create`` starts the configured one if needed.

        Raises SettingsError if there is no application.
        """
        try:
            import pyspark.sql  # noqa: F401
        except ImportError as error:
            raise SettingsError(
                f"PySpark is not installed here ({error}): pip install pyspark"
            ) from error
        context = session.started() if create else session.context()
        if context is None:
            raise SettingsError(
                f"{NO_CONTEXT} SparkSession.builder.getOrCreate() starts one (a Spark Connect"
                " session has none: use the cluster's own driver)"
            )
        return cls(context)

    # ---- resources ----

    @property
    def default_parallelism(self) -> int:
        return max(1, int(self._context.defaultParallelism))

    def get(self, name: str, default: str = "") -> str:
        return str(self._conf.get(name, default))

    @property
    def master(self) -> str:
        return str(self._context.master)

    @property
    def is_local(self) -> bool:
        """True if tasks run in the driver's JVM."""
        return self.master == "local" or self.master.startswith("local[")

    @property
    def is_dynamic(self) -> bool:
        """True if Spark starts and ends executors as it needs them."""
        return not self.is_local and self.get("spark.dynamicAllocation.enabled") == "true"

    def slots(self) -> int:
        """Return how many tasks can run simultaneously on the current executors."""
        scala = self._context._jsc.sc()
        return int(
            scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile())
        )

    def executors(self) -> int:
        infos = self._context._jsc.sc().statusTracker().getExecutorInfos()
        return max(1, len(infos) - (0 if self.is_local else 1))

    def check(self, np: int) -> None:
        """Raise SettingsError if ``np`` ranks can never start together."""
        if self.is_dynamic:
            raise SettingsError(
                "all ranks of a job start together, in a barrier stage, which Spark does not"
                " support with dynamic allocation: start the session with"
                " spark.dynamicAllocation.enabled=false and a fixed number of executors"
                " (spark.executor.instances), or use farandole.spark.run_elastic"
            )
        self.check_size(np)

    def check_size(self, np: int) -> None:
        """Raise SettingsError if the executors will never have ``np`` slots."""
        if self.is_dynamic:
            return
        most = self._most()
        if most is not None and most < np and (slots := self.slots()) < np:
            raise self._too_few(np, slots)

    def await_slots(self, np: int, seconds: float) -> int:
        """Wait for ``np`` slots and return the number of slots.

        Raises SettingsError if there will never be enough, or none within ``seconds``.
        """
        self.check(np)
        began, reported = time.monotonic(), -1
        while (slots := self.slots()) < np and (waited := time.monotonic() - began) < seconds:
            if waited > NOTICE and slots != reported:
                reported = slots
                logger.warning(
                    "np=%d ranks need as many task slots, and %s; waiting up to %.0f s for"
                    " executors (HOROVOD_SPARK_START_TIMEOUT)",
                    np,
                    self.describe(slots),
                    seconds,
                )
            time.sleep(LOOK)
        if slots < np:
            raise self._too_few(np, slots, f" after {seconds:.0f} s" if seconds else "")
        return slots

    def _too_few(self, np: int, slots: int, late: str = "") -> SettingsError:
        return SettingsError(
            f"np={np} ranks need {np} task slots at the same time; {self.describe(slots)}{late}. "
            f"{self._cure(np, slots)}"
        )

    def describe(self, slots: int) -> str:
        count = self.executors() if slots else 0
        where = "in the driver" if self.is_local else f"on {counted(count, 'executor')}"
        return f"{self.master} has {counted(slots, 'task slot')} {where}"

    def _most(self) -> int | None:
        """Return the number of slots once all executors have started; None if unknown."""
        if self.is_local:
            return self.slots()
        cpus = float(self.get("spark.task.cpus", "1"))
        match = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*", self.master)
        count, cores = self.get("spark.executor.instances"), self.get("spark.executor.cores")
        if match:
            count, cores = match[1], match[2]
        if count and cores:
            limits = [int(int(cores) / cpus)]
            for name, amount in self._conf.getAll():  # resources such as GPUs
                there = re.fullmatch(r"spark\.task\.resource\.(.+)\.amount", name)
                if there:
                    limits.append(
                        int(
                            float(self.get(f"spark.executor.resource.{there[1]}.amount", "0"))
                            / float(amount)
                        )
                    )
            return int(count) * min(limits)
        most = self.get("spark.cores.max")
        return int(int(most) / cpus) if most else None

    def _cure(self, np: int, slots: int) -> str:
        if self.is_local:
            return f"Use np={slots} or less, or start the session with .master('local[{np}]')"
        names = [
            "spark.executor.instances",
            "spark.executor.cores",
            "spark.cores.max",
            "spark.task.cpus",
        ]
        names += [
            name
            for name, _ in self._conf.getAll()
            if ".resource." in name and name.endswith(".amount")
        ]
        now = (
            ", ".join(f"{name}={self.get(name)}" for name in names if self.get(name))
            or "none of them is set"
        )
        if not slots:
            return (
                "No executor has registered. Check the cluster's pages and logs: workers must"
                " have enough spark.executor.cores and spark.executor.memory, other applications"
                f" may hold them, or executors may fail at start (now: {now})"
            )
        return (
            f"Use np={slots} or less, or a larger cluster: start the session with more workers,"
            " spark.executor.instances, spark.executor.cores or spark.cores.max, or with less"
            f" spark.task.cpus and spark.task.resource.gpu.amount (now: {now})"
        )

    def addresses(self) -> tuple[str, str]:
        """Return the interface to listen on, and the host name that executors use for it."""
        if self.is_local:
            return "127.0.0.1", ""
        host = self.get("spark.driver.host", "127.0.0.1").strip("[]")
        return self.get("spark.driver.bindAddress", host).strip("[]"), host

    # ---- the barrier stage ----

    def submit(self, np: int, task: dict[str, Any], name: str, description: str) -> Stage:
        """Return a barrier stage of ``np`` tasks that run an agent each."""
        return Stage(self._context, np, task_function(task), name, description)


def task_function(
    facts: dict[str, Any], slot: int | None = None
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function of a task: of a barrier stage, or of the job ``slot`` of an elastic job.

    ``facts``: the instructions for all agents.
    """
    return _task(_BOOT.read_text(encoding="utf-8"), *bundle(), facts, slot)


def _task(
    boot: str, archive: bytes, wanted: dict[str, str], facts: dict[str, Any], slot: int | None
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the task function for the executors.

    It is pickled whole and imports nothing from Farandole, which the executors may lack. The
    secret is in ``facts``, so that it is in no environment and no Spark setting.
    """
    files, hidden = FILES, (*PRIVATE, *launcher_env.PLACE)

    def run(_: Iterator[Any]) -> Iterator[Any]:
        from pyspark import BarrierTaskContext, SparkFiles, TaskContext

        context: Any = BarrierTaskContext.get() if slot is None else TaskContext.get()
        gpus = context.resources().get("gpu")
        mine: dict[str, Any] = {
            "index": context.partitionId() if slot is None else context.taskAttemptId(),
            "gpus": [] if gpus is None else list(gpus.addresses),
        }
        if slot is not None:
            mine["about"] = {"slot": slot, "stage": context.stageId()}
        mine |= {"env": {files: SparkFiles.getRootDirectory()}, "hidden": hidden}
        space: dict[str, Any] = {"__name__": "farandole_boot"}
        exec(compile(boot, "farandole/boot.py", "exec"), space)
        space["main"](archive, wanted, {**facts, **mine})
        return iter(())

    return run


class Stage:
    """The Spark job of one of Farandole's jobs, in its own thread.

    It is in the caller's job group, so that cancelling the group ends the job too. ``name`` is the
    tag for cancelling it, and its group if the caller has none.
    """

    def __init__(
        self, context: Any, np: int, task: Callable[..., Any], name: str, description: str
    ) -> None:
        from pyspark import InheritableThread

        self.error: BaseException | None = None
        self.ended_at: float | None = None
        self._context = context
        self._np = np
        self._task = task
        self._name = name
        self._description = description
        # The thread inherits the caller's local properties (such as its scheduler pool).
        self._thread: threading.Thread = InheritableThread(
            target=self._run, name="farandole-spark", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        try:
            group = self._context.getLocalProperty("spark.jobGroup.id") or self._name
            self._context.setJobGroup(group, self._description, interruptOnCancel=False)
            self._context.addJobTag(self._name)
            self._context.parallelize(range(self._np), self._np).barrier().mapPartitions(
                self._task
            ).collect()
        except BaseException as error:
            self.error = error
        finally:
            self.ended_at = time.monotonic()

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    def reason(self) -> str:
        """Return why the job failed, in a line or two; empty if it did not fail (yet)."""
        why = "" if self.error is None else reason(self.error)
        return STOPPED if self._context._jsc is None or "SparkContext was shut down" in why else why

    def close(self, seconds: float) -> None:
        """Wait for the tasks to end by themselves, then cancel the remaining ones."""
        self._thread.join(seconds)
        if self._thread.is_alive() and self._context._jsc is not None:
            with contextlib.suppress(Exception):  # the gateway may be gone
                self._context.cancelJobsWithTag(self._name)
            self._thread.join(10.0)

    def cancel(self) -> None:
        self.close(0.0)


def reason(error: BaseException) -> str:
    """Return the cause in Spark's exception, without its stack traces."""
    java = getattr(error, "java_exception", None)
    text = str(error)
    if java is not None:
        with contextlib.suppress(Exception):
            text = str(java.getMessage() or java.toString())
    raised = re.findall(
        r"^(?:[\w.]*\.)?(\w*(?:Error|Exception|Interrupt)): (.+)$",
        text.partition("\n\tat ")[0],
        re.M,
    )
    for pattern in (
        r"ExecutorLostFailure \(.*",
        r"Python worker exited unexpectedly.*",
        r"\[PYTHON_VERSION_MISMATCH\].*",
        r"Job \d+ cancelled.*",
    ):
        match = re.search(pattern, text)
        if match:
            return match[0].strip()
    own = [
        f"{kind}: {message}"
        for kind, message in raised
        if kind not in ("SparkException", "PythonException")
    ]
    return own[-1] if own else text.strip().split("\n")[0]
