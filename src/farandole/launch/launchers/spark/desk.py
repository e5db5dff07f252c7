"""The driver's end of the agents: their reports, their messages, and their orders."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from farandole.log import logger
from farandole.report import keys
from farandole.report.outcome import Outcome, parsed
from farandole.store import StoreServer, Value
from farandole.types import Slot

ROOM = 1 << 20  # bytes of output on their way to the driver's main thread, for each stream
WHY = 2.0  # seconds in which Spark says why a task was lost


@dataclass(frozen=True)
class Post:
    """A task that runs an agent."""

    index: int
    host: str
    place: str
    odd: Mapping[str, str]
    gpus: Sequence[str]
    python: str
    pid: int


class SparkWorker:
    """One rank, as the driver sees it."""

    def __init__(self, slot: Slot, desk: Desk) -> None:
        self.slot = slot
        self.agent: int | None = None
        self.code: int | None = None
        self.gone = False
        self.reported = False  # the rank has told the driver how it ends
        self.lost_at: float | None = None
        self.stdout: int | None  # closed by their reader
        self.stderr: int | None
        self.stdout, out = os.pipe()
        self.stderr, err = os.pipe()
        self._ends: list[int] | None = [out, err]
        self._lock = threading.Lock()
        self._desk = desk
        for fd in self._ends:
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, ROOM)

    def feed(self, stream: int, data: memoryview) -> None:
        """(A store's thread.) Output of the rank. Waits for the driver to read."""
        with self._lock, contextlib.suppress(OSError):  # the driver does not read any more
            while self._ends is not None and data:
                data = data[os.write(self._ends[stream], data) :]

    def end_output(self) -> None:
        with self._lock:
            for fd in self._ends or ():
                os.close(fd)
            self._ends = None

    def poll(self) -> int | None:
        self._desk.look_after(self)
        return self.code

    def alive(self) -> bool:
        self._desk.look_after(self)
        return not (self.gone or self.agent is None or self.lost_at is not None)

    def activity(self) -> str:
        return ""  # the agent would have to be asked

    def terminate(self) -> None:
        self._order("terminate")

    def kill(self) -> None:
        self._order("kill")

    def _order(self, what: str) -> None:
        if self.agent is None:
            self.end_output()  # nothing was started
        elif self.alive():
            self._desk.order(self.agent, {"do": what})


class Desk:
    def __init__(self, store: StoreServer, slots: Sequence[Slot]) -> None:
        self.posts: dict[int, Post] = {}
        self.lost: list[int] = []
        self.stage: Any = None
        self.workers = [SparkWorker(slot, self) for slot in slots]
        self._store = store
        self._of: dict[int, SparkWorker] = {}
        self._orders: dict[int, int] = {}
        self._lines = 0
        self._lock = threading.Lock()
        store.hooks.append(self._on_set)
        store.lost.append(self._on_lost)

    # ---- told by the agents (the store's threads) ----

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
            logger.warning("%r was set in the job's store to what cannot be that, and is ignored: %s", key, error)

    def _hear(self, index: int, verb: str, value: Value) -> None:
        if not 0 <= index < len(self.workers):
            raise ValueError(f"there are {len(self.workers)} agents")
        if verb == "hello":
            self.posts[index] = Post(index=index, **parsed(value))
            return
        worker = self._of.get(index)
        if worker is None:
            return
        if verb == "out":
            worker.feed(value[0], memoryview(value)[1:])
        elif verb == "exit":
            worker.end_output()
            worker.code = int(parsed(value)["code"])
        elif verb == "gone":
            worker.gone = True
        elif verb == "failed":
            self._fail(worker, "error", str(parsed(value)["message"]))

    def _on_lost(self, name: str) -> None:
        index = int(name.partition("/")[2])
        worker = self._of.get(index)
        if worker is None:
            self.lost.append(index)
        elif worker.lost_at is None:
            worker.lost_at = time.monotonic()

    # ---- asked by the driver ----

    def look_after(self, worker: SparkWorker) -> None:
        """A worker whose agent has gone: say why, as soon as Spark has said it to us. The first to be lost is the
        cause: Spark ends the other tasks of the stage."""
        stage, now = self.stage, time.monotonic()
        if worker.agent is None or worker.code is not None or worker.gone or stage is None:
            return
        if worker.lost_at is None and stage.ended and now > stage.ended_at + WHY:
            worker.lost_at = now  # Spark has given it up, and its connection has not noticed
        if worker.lost_at is None or not (stage.ended or now > worker.lost_at + WHY):
            return
        first = worker.lost_at <= min(other.lost_at for other in self.workers if other.lost_at is not None)
        reason = stage.reason() or "no reason is known"
        self._fail(worker, "error" if first else "victim", f"its Spark task was lost: {reason}")

    def _fail(self, worker: SparkWorker, status: str, message: str) -> None:
        if not worker.reported:
            outcome = Outcome(status=status, message=message, host=worker.slot.host)
            self._store.receive(keys.outcome(worker.slot.rank), outcome.to_bytes())
        worker.end_output()
        worker.code = 0  # nobody knows: the outcome tells how it ended
        worker.gone = True

    def assign(self, slot: Slot, index: int, order: Mapping[str, Any]) -> None:
        """Start the rank of ``slot`` with the agent ``index``."""
        worker = self.workers[slot.rank]
        worker.slot, worker.agent = slot, index
        self._of[index] = worker
        if index in self.lost:
            worker.lost_at = time.monotonic()
        slot_values = list(asdict(slot).values())
        self.order(index, {"do": "start", "slot": slot_values, **order})

    def order(self, index: int, order: Mapping[str, Any]) -> None:
        with self._lock:
            number = self._orders.get(index, 0)
            self._orders[index] = number + 1
        self._store.set(f"agent/{index}/order/{number}", json.dumps(order).encode())

    def to_log(self, text: str) -> None:
        first = self.workers[0].agent
        if first is not None and text:
            self._put_log(first, text.encode("utf-8", "replace"))

    def _put_log(self, first: int, data: bytes) -> None:
        with self._lock:
            number, self._lines = self._lines, self._lines + 1
        self._store.set(f"agent/{first}/log/{number}", data)

    def dismiss(self) -> None:
        """All agents may go, and leave nothing."""
        if self.workers[0].agent is not None:
            self._put_log(self.workers[0].agent, b"")
        for index in list(self.posts):
            self.order(index, {"do": "bye"})

    def close(self) -> None:
        for worker in self.workers:
            worker.end_output()
        self._store.hooks.remove(self._on_set)
        self._store.lost.remove(self._on_lost)
