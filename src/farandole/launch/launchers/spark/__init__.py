"""Spark: each rank is a process of its own beside a task of a barrier stage.

The tasks run ``agent``; when all have reported, ranks are dealt to them, contiguous on each host, and the agents start
them. Nothing here imports pyspark until a job starts.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from farandole.config import Placement
from farandole.errors import JobFailedError, RendezvousError, SettingsError
from farandole.launch.launchers.spark.desk import Desk, Post, SparkWorker
from farandole.launch.plan import plan
from farandole.log import logger
from farandole.store import StoreServer
from farandole.types import Slot

START_TIMEOUT = 600.0  # seconds for the tasks to be running; HOROVOD_SPARK_START_TIMEOUT
LATE = (
    "Timed out waiting for {activity}. Please check that you have enough resources to run all Horovod processes. Each "
    "Horovod process runs in a Spark task. You may need to increase {knob} to a larger value if "
    "your Spark resources are allocated on-demand."
)
VARIABLE = "HOROVOD_SPARK_START_TIMEOUT"  # in the driver's environment; seconds
FAILED = "Spark job has failed, see the error above."
# Of the driver's variables, the ranks get those that say what a program was written for. No others: the executors'
# machines are not the driver's.
CHOICES = ("KERAS_BACKEND", "TF_USE_LEGACY_KERAS")
TIDY = 5.0  # seconds for the tasks to end when their ranks have


class Spark:
    """The launcher. ``create``: start a session if there is none; ``python``: the ranks' interpreter on the executors,
    by default that of Spark's own tasks; ``start_timeout``: seconds until all tasks must be running, and ``knob``: the
    name by which users set them; ``log``: the
    first task's log gets what is given to ``to_log``."""

    name: ClassVar[str] = "spark"

    def __init__(
        self, *, title: str = "", create: bool = False, python: str = "", start_timeout: float | None = None,
        knob: str = f"{VARIABLE} (seconds; now {{seconds:g}})", log: bool = False,
    ) -> None:  # fmt: skip
        self._title, self._create, self._python, self._log = title, create, python, log
        self._told = start_timeout is not None
        if start_timeout is None:
            start_timeout = float(os.environ.get(VARIABLE) or START_TIMEOUT)
        self._start_timeout, self._knob = start_timeout, knob
        self._cluster: Any = None
        self._stage: Any = None
        self._desk: Desk | None = None
        self._store: StoreServer | None = None
        self._secret = ""
        self._np = 0
        self._slots: list[Slot] | None = None
        self._began = 0.0

    def affinity(self) -> int:
        return 0  # a session that happens to be there does not mean that a job is to run on it

    def surroundings(self, env: Mapping[str, str]) -> Placement | None:
        return Placement.from_env(env) if "FARANDOLE_RANK" in env else None

    # ---- before ----

    def default_parallelism(self) -> int:
        """Spark's default number of tasks."""
        return int(self._found().default_parallelism)

    def all_slots(self) -> int:
        """How many ranks fit; waits for the first executor."""
        return int(self._found().await_slots(1, self._start_timeout))

    def _found(self) -> Any:
        if self._cluster is None:
            from farandole.launch.launchers.spark.cluster import Cluster

            self._cluster = Cluster.active(self._create)
        return self._cluster

    def prepare(self, np: int, title: str, seconds: float) -> str:
        self._np = np
        self._start_timeout = self._start_timeout if self._told else max(self._start_timeout, seconds)
        self._title = self._title or title
        slots = self._found().await_slots(np, self._start_timeout)
        tasks = f"{np} Spark task{'' if np == 1 else 's'}"
        return f"{tasks} for {self._title}; {self._cluster.describe(slots)}"

    def open_store(self, secret: str) -> StoreServer:
        host, name = self._cluster.addresses()
        self._secret = secret
        try:
            self._store = StoreServer(secret, host, advertise=name)
        except OSError as error:
            raise SettingsError(
                f"the driver cannot listen on {host!r} ({error}): spark.driver.bindAddress, or spark.driver.host, must "
                "name an interface of this machine that the executors reach"
            ) from error
        return self._store

    def start(self, slots: Sequence[Slot], command: Sequence[str], env: Mapping[str, str]) -> Sequence[SparkWorker]:
        assert self._store is not None
        chosen = {name: os.environ[name] for name in CHOICES if name in os.environ}
        self._command, self._env = list(command[1:]), {**chosen, **env}
        self._began = time.monotonic()
        facts = {"address": self._store.address, "secret": self._secret, "timeout": 30.0}
        self._desk = Desk(self._store, slots)
        self._stage = self._cluster.submit(
            len(slots), facts, f"farandole-{uuid.uuid4().hex[:12]}", f"{self._title} on {len(slots)} ranks (Farandole)"
        )
        self._desk.stage = self._stage
        return self._desk.workers

    def awaiting(self) -> str:
        there = len(self._desk.posts) if self._desk is not None else 0
        return f"{there} of {self._np} Spark tasks started"

    def placed(self) -> Sequence[Slot] | None:
        if self._slots is None and self._desk is not None:
            posts = self._desk.posts
            if len(posts) == self._np:
                self._deal([posts[index] for index in sorted(posts)])
            elif self._stage.ended or self._desk.lost:
                self._stage.close(TIDY)
                raise JobFailedError(f"{self._stage.reason() or 'a task ended'}\n{FAILED}")
            elif time.monotonic() > self._began + self._start_timeout:
                knob = self._knob.format(seconds=self._start_timeout)
                raise RendezvousError(LATE.format(activity=f"Spark tasks to start ({self.awaiting()})", knob=knob))
        return self._slots

    def _deal(self, posts: Sequence[Post]) -> None:
        """Ranks to the tasks: rank 0 to the first, contiguous on each host."""
        assert self._desk is not None
        hosts: dict[str, list[Post]] = {}
        for post in posts:
            hosts.setdefault(post.place, []).append(post)
        order = [post for group in hosts.values() for post in group]
        self._slots = list(plan([(group[0].host, len(group)) for group in hosts.values()], len(order)))
        for slot, post in zip(self._slots, order, strict=True):
            for name, where in post.odd.items():
                if where and name != "cloudpickle":
                    logger.warning("%s has another %s (%s); its rank runs the driver's, which was sent along",
                                   post.host, name, where)  # fmt: skip
            env = {**self._env, "FARANDOLE_RANK": str(slot.rank), "FARANDOLE_LOCAL_RANK": str(slot.local_rank)}
            self._desk.assign(slot, post.index, {
                "env": {**env, **visible([neighbour.gpus for neighbour in hosts[post.place]], slot.local_rank)},
                "command": self._command, "python": self._python, "log": self._log and slot.rank == 0,
            })  # fmt: skip

    # ---- after ----

    def to_log(self, text: str) -> None:
        """Add to the first task's log."""
        if self._desk is not None:
            self._desk.to_log(text)

    def close(self) -> None:
        if self._desk is not None:
            self._desk.dismiss()
        if self._stage is not None:
            # Tasks that have not reported cannot be told to end.
            self._stage.close(TIDY if self._slots is not None else 0.0)
            if self._desk is not None:
                self._desk.close()


def visible(gpus: Sequence[Sequence[str]], local_rank: int) -> dict[str, str]:
    """The variables that pin a rank to Spark's GPUs for it. ``gpus``: the addresses of each task of its host.

    Every rank of a host sees the GPUs of all of them, in an order in which the device with the number of its local
    rank is its own: Horovod programs say ``torch.cuda.set_device(hvd.local_rank())``.
    """
    if not gpus[local_rank]:
        return {}
    most = max(len(addresses) for addresses in gpus)
    order = [addresses[turn] for turn in range(most) for addresses in gpus if turn < len(addresses)]
    unique = list(dict.fromkeys(order))
    mine = [str(unique.index(address)) for address in gpus[local_rank]]
    return {"CUDA_VISIBLE_DEVICES": ",".join(unique), "FARANDOLE_GPUS": ",".join(mine)}
