"""The agent inside each Spark task: it starts one rank as a process of its own, passes its output and its end on to the
driver, and ends it when the driver says so, goes away, or Spark ends the task.

Everything travels through the job's store: ``agent/<n>/hello``, ``out``, ``exit`` and ``gone`` to the driver,
``agent/<n>/order/<k>`` and, to the first agent, ``agent/<n>/log/<k>`` from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from farandole.config import Connection, Placement, Settings, variables
from farandole.errors import AuthenticationError, HorovodInternalError, RendezvousError, SettingsError
from farandole.launch.launchers.local import LocalWorker, start_ranks
from farandole.launch.launchers.spark import guard
from farandole.store import StoreClient
from farandole.types import Slot

STREAMS = ("stdout", "stderr")
AHEAD = 64 << 20  # bytes of output that may wait for the driver before the rank has to
PIECE = 1 << 18
LOOK = 0.05  # seconds between looks at the process
DRAIN = 0.5  # seconds for which the pipes of a rank that has ended are still read
GRACE = 2.0  # seconds between SIGTERM and SIGKILL when the driver has gone
PATIENCE = 5.0  # seconds for messages on their way when the task is over
LONG = 3600.0
_GONE = (HorovodInternalError, RendezvousError, AuthenticationError, OSError)  # the driver has


class Agent:
    """``task``: index, address, secret, timeout, resources. ``folder`` holds the driver's packages, if this host had
    others: ``odd``."""

    def __init__(self, task: Mapping[str, Any], folder: str, odd: Mapping[str, str]) -> None:
        self.name = f"agent/{task['index']}"
        self._task = task
        self._folder = folder
        self._odd = odd
        self._client = StoreClient(task["address"], task["secret"], timeout=task["timeout"])
        self._worker: LocalWorker | None = None
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._wake_in, self._wake_out = os.pipe()
        self._listening: threading.Thread | None = None
        self._talking: list[threading.Thread] = []

    def run(self) -> None:
        """Until the driver says bye."""
        try:
            self._client.stay(self.name)
            self._say("hello", self._hello())
            order = self._next_order(0)
            if order["do"] == "start" and self._start(order):
                self._attend()
        except _GONE:
            self._end_alone()  # not Spark's trouble: the driver knows why it went
        finally:
            for thread in self._talking:
                thread.join(PATIENCE)
            self._client.close()
            if self._listening is not None:
                self._listening.join(PATIENCE)
            os.close(self._wake_in)
            os.close(self._wake_out)

    def _say(self, what: str, facts: Mapping[str, Any]) -> None:
        self._client.set(f"{self.name}/{what}", json.dumps(facts).encode())

    def _hello(self) -> dict[str, Any]:
        return {
            "host": socket.gethostname(), "place": place(), "odd": dict(self._odd), "gpus": self._task["gpus"],
            "python": sys.executable, "pid": os.getpid(),
        }  # fmt: skip

    def _next_order(self, number: int) -> dict[str, Any]:
        while True:
            data = self._client.take(f"{self.name}/order/{number}", LONG)
            if data is not None:
                found: dict[str, Any] = json.loads(data)
                return found

    def _start(self, order: Mapping[str, Any]) -> bool:
        """False if the rank cannot be started."""
        env = environment(dict(os.environ), order["env"], self._folder)
        env[guard.FILES] = self._task["files"]
        command = [order["python"] or sys.executable, *order["command"]]
        try:
            (self._worker,) = start_ranks([Slot(*order["slot"])], command, env)
        except SettingsError as error:
            self._say("failed", {"message": f"{command[0]} cannot be started: {error.__cause__}"})
            return False
        self._listening = threading.Thread(target=self._take_orders, name="farandole-orders", daemon=True)
        self._listening.start()
        if order["log"]:
            self._talking.append(threading.Thread(target=self._show_log, name="farandole-log", daemon=True))
            self._talking[0].start()
        return True

    # ---- threads ----

    def _take_orders(self) -> None:
        number = 1
        try:
            while True:
                order = self._next_order(number)
                self._give(order)
                if order["do"] == "bye":
                    return
                number += 1
        except _GONE:
            self._give({"do": "orphan"})

    def _give(self, order: dict[str, Any]) -> None:
        self._orders.put(order)
        with contextlib.suppress(OSError):
            os.write(self._wake_out, b"\0")

    def _show_log(self) -> None:
        """The output of all ranks, which the driver has merged, goes to this task's log."""
        number = 0
        with contextlib.suppress(*_GONE):
            while True:
                text = self._client.take(f"{self.name}/log/{number}", LONG)
                if text is not None:
                    if not text:
                        return
                    sys.stderr.buffer.write(text)
                    sys.stderr.flush()
                    number += 1

    # ---- the task's own thread ----

    def _attend(self) -> None:
        """Pass output on, report the end, obey; returns after bye."""
        assert self._worker is not None
        sender = Sender(self._client, self.name)
        self._talking.append(sender)
        sender.start()
        try:
            with Pipes(self._worker, self._wake_in) as pipes:
                self._follow(self._worker, pipes, sender)
        finally:
            sender.finish()

    def _follow(self, worker: LocalWorker, pipes: Pipes, sender: Sender) -> None:
        ended, said_exit, said_gone = 0.0, False, False
        while True:
            for stream, data in pipes.read(LOOK):
                sender.put("out", bytes([stream]) + data)
            code = worker.poll()
            if code is not None and not ended:
                ended = time.monotonic()
            if ended and not said_exit and (not pipes.open or time.monotonic() > ended + DRAIN):
                said_exit = True
                sender.put("exit", json.dumps({"code": code}).encode())
            if said_exit and not said_gone and not worker.alive():
                said_gone = True
                sender.put("gone", b"{}")
            while not self._orders.empty():
                order = self._orders.get()
                if order["do"] == "bye":
                    self._end_alone()
                    return
                if order["do"] == "orphan":
                    raise RendezvousError("the driver has gone")
                worker.terminate() if order["do"] == "terminate" else worker.kill()

    def _end_alone(self) -> None:
        """End the rank's remaining processes without the driver."""
        worker = self._worker
        if worker is None or not worker.alive():
            return
        worker.terminate()
        deadline = time.monotonic() + GRACE
        while worker.alive() and time.monotonic() < deadline:
            time.sleep(LOOK)
        worker.kill()
        deadline = time.monotonic() + GRACE
        while worker.alive() and time.monotonic() < deadline:
            time.sleep(LOOK)


class Pipes:
    """The rank's output, and the pipe that wakes us for an order."""

    def __init__(self, worker: LocalWorker, wake: int) -> None:
        self.open = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(wake, selectors.EVENT_READ, None)
        for index, fd in enumerate((worker.stdout, worker.stderr)):
            if fd is not None:
                self.open.add(fd)
                self._selector.register(fd, selectors.EVENT_READ, index)

    def __enter__(self) -> Pipes:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for fd in self.open:
            os.close(fd)

    def read(self, seconds: float) -> list[tuple[int, bytes]]:
        """Output: (0 for stdout or 1 for stderr, bytes)."""
        found = []
        for key, _ in self._selector.select(seconds):
            data = os.read(key.fd, PIECE)
            if key.data is None:
                continue
            if data:
                found.append((key.data, data))
            else:
                self._selector.unregister(key.fd)
                self.open.discard(key.fd)
                os.close(key.fd)
        return found


class Sender(threading.Thread):
    """Sends in order, and merges pieces of one stream that wait, so that a slow driver does not slow the rank."""

    def __init__(self, client: StoreClient, name: str) -> None:
        super().__init__(name=f"farandole-{name}-out", daemon=True)
        self._client = client
        self._prefix = name
        self._waiting: deque[tuple[str, bytearray]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._finished = self._broken = False

    def put(self, what: str, data: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < AHEAD or self._broken)
            last = self._waiting[-1] if self._waiting else ("", bytearray())
            if what == "out" and last[0] == what and last[1][0] == data[0] and len(last[1]) < PIECE:
                last[1].extend(data[1:])
            else:
                self._waiting.append((what, bytearray(data)))
            self._bytes += len(data)
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._finished)
                if not self._waiting:
                    return
                what, data = self._waiting.popleft()
                self._bytes -= len(data)
                self._changed.notify_all()
            try:
                self._client.set(f"{self._prefix}/{what}", bytes(data))
            except _GONE:
                with self._changed:
                    self._broken = True
                    self._waiting.clear()
                    self._changed.notify_all()
                return


def place() -> str:
    """The common trait of processes that can share memory: the running kernel, and its network namespace (Unix sockets
    without a file belong to one)."""
    name = ""
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            name = file.read().strip()
        name += os.readlink("/proc/self/ns/net")
    return name or socket.gethostname()


def environment(own: Mapping[str, str], job: Mapping[str, str], folder: str) -> dict[str, str]:
    """The rank's variables: those of the executor's Python, with importable packages there, and the job's."""
    known = variables(Placement, Connection, Settings)
    private = ("PYTHON_WORKER_FACTORY", "_PYSPARK_")
    base = {name: value for name, value in own.items() if name not in known and not name.startswith(private)}
    path = [folder, *(entry for entry in sys.path if entry != folder)]
    return {**base, "PYTHONPATH": os.pathsep.join(entry for entry in path if entry), **job}
