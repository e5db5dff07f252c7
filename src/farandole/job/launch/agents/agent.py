"""The agent of a host or of one task of a cluster.

The agent starts ranks as processes, forwards their output and exit codes to the driver, and ends
them when the driver requests it or is lost, or when the cluster ends the agent. All communication
goes through the job's store; ``registry`` lists the keys.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from farandole.base.host import cores, namespace
from farandole.base.types import Slot
from farandole.errors import (
    AuthenticationError,
    HorovodInternalError,
    JobFailedError,
    RendezvousError,
    SettingsError,
)
from farandole.job.config import Settings
from farandole.job.launch import launcher_env
from farandole.job.launch.agents.pulse import BEAT
from farandole.job.launch.limits import cure
from farandole.job.launch.processes import LocalWorker, start_ranks
from farandole.net.store import StoreClient
from farandole.net.store.exchange import redeem

AHEAD = 64 << 20  # bytes of output that may be queued for the driver before ranks block
PIECE = 1 << 18
LOOK = 0.05  # seconds between checks of the processes
DRAIN = 0.5  # seconds for which the pipes of an ended rank are still read
TIDY = 2.0  # seconds between SIGTERM and SIGKILL for leftover processes of ended ranks
PATIENCE = 5.0  # seconds for pending messages after the task
LONG = 3600.0
_GONE = (HorovodInternalError, RendezvousError, AuthenticationError, OSError)  # the driver is lost


class Agent:
    """The agent of one place.

    - ``task``: The instructions: index, address, secret (with ``redeem``: of a secret exchange),
      timeout and gpus; ``about``, the cluster's facts about this place; ``env``, variables for the
      ranks of this place; ``hidden``, prefixes of variables that ranks do not inherit, by default
      as in ``launcher_env``; ``cwd``, the ranks' working directory, by default this one.
    - ``folder``: The driver's packages, if this host had others.
    - ``odd``: The packages that differed.
    """

    def __init__(self, task: Mapping[str, Any], folder: str, odd: Mapping[str, str]) -> None:
        self.name = f"agent/{task['index']}"
        self._task = task
        self._folder = folder
        self._odd = odd
        client = StoreClient(task["address"], task["secret"], timeout=task["timeout"])
        self._client = redeem(client, task["index"]) if task.get("redeem") else client
        self._workers: list[LocalWorker] = []  # the ranks, followed by other processes
        self._ranks = 0
        self._error = ""  # the error in the driver's dismissal
        self._grace = 0.0  # seconds for the ranks to end after the driver was lost
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._wake_in, self._wake_out = os.pipe()
        self._listening: threading.Thread | None = None
        self._talking: list[threading.Thread] = []

    def run(self) -> None:
        """Serve until the driver dismisses the agent.

        Raises JobFailedError if the driver's dismissal has an error, so that the cluster counts the
        place as failed.
        """
        try:
            self._client.announce(self.name)
            self._client.set(f"{self.name}/hello", json.dumps(self._hello()).encode())
            order = self._next_order(0)
            if order["do"] == "start" and self._start(order):
                self._attend()
        except _GONE:
            # not an error of the cluster: the driver knows the reason
            self._end_alone(max(TIDY, self._grace))
            self._client.close()  # threads may be waiting for an answer from the driver
        finally:
            for thread in self._talking:
                thread.join(PATIENCE)
            self._client.close()
            if self._listening is not None:
                self._listening.join(PATIENCE)
            os.close(self._wake_in)
            os.close(self._wake_out)
        if self._error:
            raise JobFailedError(self._error)

    def _hello(self) -> dict[str, Any]:
        return {
            "host": socket.gethostname(),
            "place": place(),
            "odd": dict(self._odd),
            "gpus": self._task.get("gpus", []),
            "about": self._task.get("about", {}),
            "cores": cores(),
            "python": sys.executable,
            "pid": os.getpid(),
        }

    def _next_order(self, number: int) -> dict[str, Any]:
        while True:
            data = self._client.take(f"{self.name}/order/{number}", LONG)
            if data is not None:
                found: dict[str, Any] = json.loads(data)
                return found

    def _start(self, order: Mapping[str, Any]) -> bool:
        """Start the ranks and the agent's threads; False if the ranks cannot be started."""
        if not self._run(order):
            return False
        self._ranks = len(self._workers)
        self._listening = threading.Thread(
            target=self._take_orders, name="farandole-orders", daemon=True
        )
        self._listening.start()
        if "notices" in order:
            self._watch_notices(*order["notices"])
        if order["log"]:
            self._talking.append(
                threading.Thread(target=self._show_log, name="farandole-log", daemon=True)
            )
            self._talking[0].start()
        return True

    def _run(self, order: Mapping[str, Any]) -> bool:
        """Start the processes of an order; False if they cannot be started."""
        own = environment(
            os.environ, self._folder, tuple(self._task.get("hidden", launcher_env.PLACE))
        )
        command = [order["python"] or sys.executable, *order["command"]]
        slots = [Slot(*rank["slot"]) for rank in order["ranks"]]
        # Hosts may reach the driver at different addresses.
        here = {"FARANDOLE_STORE": self._client.address}
        envs = [{**self._task.get("env", {}), **rank["env"], **here} for rank in order["ranks"]]
        self._grace = Settings.from_env(envs[0]).grace_seconds
        try:
            self._workers += start_ranks(slots, command, own, envs, self._task.get("cwd", ""))
        except SettingsError as error:
            for number in range(len(self._workers), len(self._workers) + len(slots)):
                message = {
                    "message": (
                        f"{command[0]} cannot be started:"
                        f" {error.__cause__ or error}{cure(error.__cause__)}"
                    )
                }
                self._client.set(f"{self.name}/failed/{number}", json.dumps(message).encode())
            return False
        return True

    def _watch_notices(self, host: str, sources: str) -> None:
        """Report preemption notices about this host to the driver.

        ``host``: its name in the job. ``sources``: the setting ``preemption_notice``.
        """
        # Imported here because most jobs have no sources of notices.
        from farandole.job.elastic.notices.notice import Notice
        from farandole.job.elastic.notices.signals import SignalNotices
        from farandole.job.elastic.notices.sources import parse_sources
        from farandole.job.elastic.notices.watch import watch_host

        def report(notice: Notice) -> None:
            with contextlib.suppress(*_GONE):
                self._client.set(f"{self.name}/notice", notice.to_bytes())

        def on_signal(number: int) -> bool:
            report(Notice(signal.Signals(number).name))
            return True

        watch_host(host, sources, report)
        SignalNotices(parse_sources(sources, os.environ), on_signal).install()

    def signal(self, number: int) -> None:
        """Send a signal to the ranks' own processes."""
        for worker in self._workers[: self._ranks]:
            worker.signal(number)

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
        """Write the output of all ranks, merged by the driver, to this task's log."""
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

    # ---- the main thread ----

    def _attend(self) -> None:
        """Forward output, report exits and execute orders until dismissed."""
        sender = Sender(self._client, self.name)
        self._talking.append(sender)
        sender.start()
        try:
            with Pipes(self._wake_in) as pipes:
                followed: list[Followed] = []
                beat = 0.0
                while self._execute_orders(sender):
                    if time.monotonic() > beat:
                        sender.put("beat", b"")
                        beat = time.monotonic() + BEAT
                    for worker in self._workers[len(followed) :]:
                        pipes.add(worker)
                        followed.append(Followed(len(followed), worker))
                    for number, stream, data in pipes.read(LOOK):
                        sender.put(f"out/{number}", bytes([stream]) + data)
                    for rank in followed:
                        rank.poll(pipes, sender)
        finally:
            sender.finish()

    def _execute_orders(self, sender: Sender) -> bool:
        """Execute pending orders; False once dismissed."""
        while not self._orders.empty():
            order = self._orders.get()
            if order["do"] == "bye":
                self._error = order.get("error", "")
                self._end_alone(TIDY)
                return False
            if order["do"] == "orphan":
                raise RendezvousError("the driver is gone")
            if order["do"] == "serve":
                self._run(order)
                continue
            worker = self._workers[order["rank"]]
            if order["do"] == "activity":
                sender.put(f"activity/{order['rank']}", worker.activity().encode())
                continue
            if order["do"] == "signal":
                worker.signal(order["number"])
            else:
                worker.terminate() if order["do"] == "terminate" else worker.kill()
        return True

    def _end_alone(self, grace: float) -> None:
        """End the remaining processes of the ranks without the driver: SIGTERM and, ``grace``
        seconds later, SIGKILL.
        """
        for end, seconds in ((LocalWorker.terminate, grace), (LocalWorker.kill, TIDY)):
            deadline = time.monotonic() + seconds
            for worker in self._workers:
                if worker.alive():
                    end(worker)
            while any(worker.alive() for worker in self._workers) and time.monotonic() < deadline:
                time.sleep(LOOK)


class Followed:
    """One rank, until its exit has been fully reported."""

    def __init__(self, number: int, worker: LocalWorker) -> None:
        self._number = number
        self._worker = worker
        self._ended = 0.0
        self._reported_exit = False
        self._reported_gone = False

    def poll(self, pipes: Pipes, sender: Sender) -> None:
        code = self._worker.poll()
        if code is not None and not self._ended:
            self._ended = time.monotonic()
        quiet = not pipes.open[self._number] or time.monotonic() > self._ended + DRAIN
        if self._ended and not self._reported_exit and quiet:
            self._reported_exit = True
            sender.put(f"exit/{self._number}", json.dumps({"code": code}).encode())
        if self._reported_exit and not self._reported_gone and not self._worker.alive():
            self._reported_gone = True
            sender.put(f"gone/{self._number}", b"{}")


class Pipes:
    """The ranks' output pipes, and the pipe that wakes the agent for an order."""

    def __init__(self, wake: int) -> None:
        self.open: list[set[int]] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(wake, selectors.EVENT_READ, None)

    def add(self, worker: LocalWorker) -> None:
        number = len(self.open)
        self.open.append(set())
        for index, fd in enumerate((worker.stdout, worker.stderr)):
            if fd is not None:
                self.open[number].add(fd)
                self._selector.register(fd, selectors.EVENT_READ, (number, index))

    def __enter__(self) -> Pipes:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for fd in set().union(*self.open):
            os.close(fd)

    def read(self, seconds: float) -> list[tuple[int, int, bytes]]:
        """Return output as (the rank's number on this agent, 0 for stdout or 1 for stderr,
        bytes).
        """
        found = []
        for key, _ in self._selector.select(seconds):
            data = os.read(key.fd, PIECE)
            if key.data is None:
                continue
            number, stream = key.data
            if data:
                found.append((number, stream, data))
            else:
                self._selector.unregister(key.fd)
                self.open[number].discard(key.fd)
                os.close(key.fd)
        return found


class Sender(threading.Thread):
    """Sends messages in order and merges queued pieces of a stream, so that a slow driver does
    not slow down the ranks.
    """

    def __init__(self, client: StoreClient, name: str) -> None:
        super().__init__(name=f"farandole-{name}-out", daemon=True)
        self._client = client
        self._prefix = name
        self._waiting: deque[tuple[str, bytearray]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._finished = False
        self._broken = False

    def put(self, what: str, data: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < AHEAD or self._broken)
            last = self._waiting[-1] if self._waiting else ("", bytearray())
            if (
                what.startswith("out/")
                and last[0] == what
                and last[1][0] == data[0]
                and len(last[1]) < PIECE
            ):
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
    """Return an id shared by processes that can share memory: the running kernel and its
    network namespace, which contains the abstract Unix sockets.
    """
    return namespace("net") or socket.gethostname()


def environment(
    own: Mapping[str, str], folder: str, hidden: tuple[str, ...] = launcher_env.PLACE
) -> dict[str, str]:
    """Return this host's variables for ranks: the agent's own, without settings and ``hidden``
    prefixes, and with its importable packages.
    """
    base = launcher_env.inherited(own, hidden)
    path = [folder, *(entry for entry in sys.path if entry != folder)]
    return {**base, "PYTHONPATH": os.pathsep.join(entry for entry in path if entry)}
