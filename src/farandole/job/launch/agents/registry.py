"""The driver's end of the agents: their reports, messages and orders.

All communication goes through the job's store. To the driver: ``agent/<n>/hello``,
``agent/<n>/beat`` every few seconds, ``agent/<n>/notice`` for a preemption notice, and for the k-th
rank of an agent ``agent/<n>/out/<k>``, ``exit/<k>``, ``gone/<k>``, ``failed/<k>`` and
``activity/<k>``. From the driver: ``agent/<n>/order/<number>`` and, to the first rank's agent,
``agent/<n>/log/<number>``. Processes other than ranks are numbered after the ranks of their agent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farandole.base.log import logger
from farandole.base.types import Slot
from farandole.errors import printable, ranks_named
from farandole.job.launch.agents.pulse import BEAT, AgentPulse
from farandole.job.report import keys
from farandole.job.report.outcome import SILENT, Outcome, parsed
from farandole.net.store import StoreServer, Value

ROOM = 1 << 20  # bytes of output in flight to the driver's main thread, for each stream
ANSWER = 1.0  # seconds for an agent to answer a query
WHY = 2.0  # seconds for the cluster to report why an agent was lost
Gone = Callable[[int], "str | None"]


@dataclass(frozen=True)
class AgentInfo:
    """An agent that has reported.

    - ``place``: The same for agents whose ranks can share memory.
    - ``odd``: The packages that differ from the driver's.
    - ``gpus``: The addresses that the cluster assigned.
    - ``about``: The cluster's own facts about the place.
    """

    index: int
    host: str
    place: str
    odd: Mapping[str, str]
    gpus: Sequence[str]
    cores: int
    python: str
    pid: int
    about: Mapping[str, Any] = field(default_factory=dict)


class RemoteWorker:
    """A rank run by an agent, or (``serves``) another process of the job, as the driver sees it."""

    def __init__(self, slot: Slot, registry: AgentRegistry, serves: bool = False) -> None:
        self.slot = slot
        self.serves = serves
        self.agent: int | None = None
        self.number = 0  # among the ranks of its agent
        self.code: int | None = None
        self.ended = math.inf
        self.gone = False
        self.said: str | None = None  # the agent's last answer to a query for the activity
        self.answered = threading.Event()
        self.reported = False  # the rank has reported its outcome to the driver
        self.lost_at: float | None = None
        self.stdout: int | None  # closed by the reader
        self.stderr: int | None
        self.stdout, out = os.pipe()
        self.stderr, err = os.pipe()
        self._ends: list[int] | None = [out, err]
        self._lock = threading.Lock()
        self._registry = registry
        for fd in self._ends:
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, ROOM)

    def feed(self, stream: int, data: memoryview) -> None:
        """Pass on output, on a thread of the store. Blocks until the driver reads."""
        with self._lock, contextlib.suppress(OSError):  # the driver no longer reads
            while self._ends is not None and data:
                data = data[os.write(self._ends[stream], data) :]

    def end(self, code: int) -> None:
        """Record the end of the process. Any thread."""
        self.end_output()
        self.ended = time.monotonic()
        self.code = code

    def end_output(self) -> None:
        with self._lock:
            for fd in self._ends or ():
                os.close(fd)
            self._ends = None

    def poll(self) -> int | None:
        self._registry.check_agent(self)
        return self.code

    def alive(self) -> bool:
        self._registry.check_agent(self)
        return not (self.gone or self.agent is None or self.lost_at is not None)

    def activity(self) -> str:
        """Query the agent. The first call waits for the answer; later calls return the last answer,
        so that a stopped agent delays the driver only once.
        """
        is_first, self.said = self.said is None, self.said or ""
        if self.alive():
            self._order("activity")
            if is_first:
                self.answered.wait(ANSWER)
        return self.said

    def signal(self, number: int) -> None:
        if self.agent is not None:
            self._order("signal", number=number)

    def terminate(self) -> None:
        self._order("terminate")
        if self.agent is not None and self.agent not in self._registry.agents:
            # Its host may be unreachable: no process runs on it, and an agent that reports later
            # ends the process immediately.
            self.gone = True
            self.end(-signal.SIGTERM)

    def kill(self) -> None:
        self._order("kill")

    def _order(self, what: str, **more: int) -> None:
        if self.agent is None:
            self.end_output()  # the process was never started
        elif self.alive():
            self._registry.order(self.agent, {"do": what, "rank": self.number, **more})


class AgentRegistry:
    """The agents of a job: ``count`` agents for the ranks of ``slots``.

    ``gone(index)`` is ``AgentCluster.gone``; ``noun`` is the cluster's term for an agent's process.
    ``shutdown``: see ``AgentPulse``.
    """

    def __init__(
        self,
        store: StoreServer,
        slots: Sequence[Slot],
        count: int,
        gone: Gone,
        noun: str,
        shutdown: float = 0.0,
    ) -> None:
        self.agents: dict[int, AgentInfo] = {}
        self.lost: list[int] = []
        # Called with an agent's number and a preemption notice about its host.
        self.on_notice: Callable[[int, Value], None] | None = None
        self.pulse = AgentPulse(shutdown)
        self.workers = [RemoteWorker(slot, self) for slot in slots]
        self._others: list[RemoteWorker] = []  # processes other than ranks
        self._store = store
        self._count = count
        self._gone = gone
        self._noun = noun
        self._gone_since: dict[int, float] = {}
        self._of: dict[int, list[RemoteWorker]] = {}
        self._orders: dict[int, int] = {}
        self._lines = 0
        self._lock = threading.Lock()
        store.hooks.append(self._on_set)
        store.lost.append(self._on_lost)

    # ---- reports of the agents, on the store's threads ----

    def _on_set(self, key: str, value: Value) -> None:
        what, _, rest = key.partition("/")
        try:
            if what == "outcome":
                self.workers[int(rest)].reported = True
            elif what == "agent":
                self._store.pop(key)
                number, _, verb = rest.partition("/")
                self._hear(int(number), verb, value)
        except (ValueError, TypeError, LookupError) as error:
            logger.warning(
                "ignoring %r in the job's store: its value is malformed (%s)",
                key,
                error,
            )

    def _hear(self, index: int, verb: str, value: Value) -> None:
        if not 0 <= index < self._count:
            raise ValueError(f"agent number out of range: there are {self._count} agents")
        self.pulse.hear(index, time.monotonic())
        if verb == "beat":
            return
        if verb == "hello":
            facts = parsed(value)
            self.agents[index] = AgentInfo(
                index=index, **{**facts, "host": printable(str(facts["host"]))}
            )
            return
        if verb == "notice" and self.on_notice is not None:
            self.on_notice(index, value)
        if index not in self._of or verb == "notice":
            return
        what, _, number = verb.partition("/")
        if not number.isdecimal():
            raise ValueError(f"{number!r} is not a rank")
        worker = self._of[index][int(number)]
        if what == "out":
            worker.feed(value[0], memoryview(value)[1:])
        elif what == "exit":
            worker.end(int(parsed(value)["code"]))
        elif what == "gone":
            worker.gone = True
        elif what == "activity":
            worker.said = printable(bytes(value).decode("utf-8", "replace"))
            worker.answered.set()
        elif what == "failed":
            self._fail(worker, "error", str(parsed(value)["message"]))
        else:
            raise ValueError(f"{what!r} is not a report of an agent")

    def _on_lost(self, name: str) -> None:
        index = int(name.partition("/")[2])
        if index not in self._of:
            self.lost.append(index)
        for worker in self._of.get(index, ()):
            if worker.lost_at is None:
                worker.lost_at = time.monotonic()

    # ---- requests of the driver ----

    def check_agent(self, worker: RemoteWorker) -> None:
        """Report why a worker's agent was lost, as soon as the cluster has given the reason.

        The first lost worker is the cause, because some clusters then end the others.
        """
        if worker.agent is None or worker.code is not None or worker.gone:
            return
        why, now = self._gone(worker.agent), time.monotonic()
        seconds = self.pulse.poll(worker.agent, now)
        if why is None and seconds >= BEAT:
            why = self._check_silence(worker.agent, seconds)
            if why is not None:
                worker.lost_at = worker.lost_at or now
        if (
            why is not None
            and now > self._gone_since.setdefault(worker.agent, now) + WHY
            and worker.lost_at is None
        ):
            # the cluster has given the agent up, although its connection is still open
            worker.lost_at = now
        if worker.lost_at is None or not (why is not None or now > worker.lost_at + WHY):
            return
        if worker.serves:  # the ranks of its agent report the loss
            worker.end_output()
            worker.gone = True
            return
        first = worker.lost_at <= min(
            other.lost_at for other in self.workers if other.lost_at is not None
        )
        self._fail(
            worker, "error" if first else "victim", f"its {self._noun} was lost: {why or SILENT}"
        )

    def _check_silence(self, index: int, seconds: float) -> str | None:
        """Report an agent that has been silent for that time. Return why it is lost, if it is."""
        ranks = [worker for worker in self._of[index] if not worker.serves]
        has_ended = all(worker.reported for worker in ranks)
        is_lost = self.pulse.is_lost(seconds, has_ended=has_ended)
        why = self._suspended(index, seconds)
        if self.pulse.has_to_report(index, seconds) or (is_lost and has_ended):
            logger.warning("%s", why)
        return why if is_lost else None

    def _suspended(self, index: int, seconds: float) -> str:
        ranks = [worker.slot.rank for worker in self._of[index] if not worker.serves]
        agent = self.agents[index]
        return (
            f"the agent on {agent.host} (process {agent.pid}) has not answered for {seconds:.0f} s:"
            " it is suspended (SIGSTOP, a debugger), or its host swaps or waits for a disk. Until"
            f" it resumes, the output and the end of {ranks_named(ranks)} do not arrive"
        )

    def _fail(self, worker: RemoteWorker, status: str, message: str) -> None:
        if worker.serves:
            worker.feed(1, memoryview(f"{message}\n".encode()))
        elif not worker.reported:
            outcome = Outcome(status=status, message=message, host=worker.slot.host)
            self._store.receive(keys.outcome(worker.slot.rank), outcome.to_bytes())
        # a lost rank's code is unknown; its outcome says how it ended
        worker.end(int(worker.serves))
        worker.gone = True

    def assign(
        self, index: int, slots: Sequence[Slot], env: Sequence[Mapping[str, str]], order: Any
    ) -> None:
        """Make the agent ``index`` start the ranks of ``slots``, each with its own ``env``."""
        workers = [self.workers[slot.rank] for slot in slots]
        for worker, slot in zip(workers, slots, strict=True):
            worker.slot = slot
        self._entrust(index, workers, env, {"do": "start", **order})

    def add(self, index: int, slot: Slot, env: Mapping[str, str], order: Any) -> RemoteWorker:
        """Make the agent ``index`` start one more rank, which may be its first; the ranks of an
        elastic job are numbered as they start.
        """
        worker = RemoteWorker(slot, self)
        self.workers.append(worker)
        verb = "serve" if index in self._of else "start"
        self._entrust(index, [worker], [env], {"do": verb, **order})
        return worker

    def serve(
        self, index: int, slots: Sequence[Slot], env: Sequence[Mapping[str, str]], order: Any
    ) -> list[RemoteWorker]:
        """Make the agent ``index``, which has ranks, start other processes too."""
        workers = [RemoteWorker(slot, self, serves=True) for slot in slots]
        self._others += workers
        self._entrust(index, workers, env, {"do": "serve", **order})
        return workers

    def _entrust(
        self,
        index: int,
        workers: Sequence[RemoteWorker],
        env: Sequence[Mapping[str, str]],
        order: Any,
    ) -> None:
        before = self._of.get(index, [])
        for number, worker in enumerate(workers, start=len(before)):
            worker.number, worker.agent = number, index
            if index in self.lost:
                worker.lost_at = time.monotonic()
        self._of[index] = [*before, *workers]
        ranks = [
            {"slot": list(worker.slot), "env": dict(own)}
            for worker, own in zip(workers, env, strict=True)
        ]
        self.order(index, {"ranks": ranks, **order})

    def order(self, index: int, order: Mapping[str, Any]) -> None:
        with self._lock:
            number = self._orders.get(index, 0)
            self._orders[index] = number + 1
        self._store.set(f"agent/{index}/order/{number}", json.dumps(order).encode())

    def to_log(self, text: str) -> None:
        """Add to the log of the first rank's agent."""
        first = self.workers[0].agent
        if first is not None and text:
            self._put_log(first, text.encode("utf-8", "replace"))

    def _put_log(self, first: int, data: bytes) -> None:
        with self._lock:
            number, self._lines = self._lines, self._lines + 1
        self._store.set(f"agent/{first}/log/{number}", data)

    def dismiss_one(self, index: int, error: str = "") -> None:
        """Dismiss one agent. With ``error``, the cluster counts its place as failed."""
        self.order(index, {"do": "bye", "error": error})

    def dismiss(self) -> None:
        """Dismiss all agents."""
        if self.workers and self.workers[0].agent is not None:
            self._put_log(self.workers[0].agent, b"")
        for index in list(self.agents):
            self.order(index, {"do": "bye"})

    def close(self) -> None:
        for worker in (*self.workers, *self._others):
            worker.end_output()
        self._store.hooks.remove(self._on_set)
        self._store.lost.remove(self._on_lost)
