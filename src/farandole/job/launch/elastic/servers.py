"""The parameter servers of an elastic job: processes on the driver's host, where the loss of other
hosts does not affect them.

A process that ends is replaced, see ``job.elastic.servers``.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from farandole.base.log import logger
from farandole.base.package import PARENT
from farandole.base.types import Slot
from farandole.errors import JobFailedError
from farandole.job.config import Settings
from farandole.job.elastic.servers import ServerPlan, ServerProcess
from farandole.job.launch import launcher_env
from farandole.job.launch.contract import Worker
from farandole.job.launch.explain.exit_codes import describe, exit_status
from farandole.job.launch.processes import start_ranks
from farandole.job.report import keys
from farandole.net.store import StoreServer, Value

FIRST_SLOT = 1 << 24  # the numbers of ranks' processes are lower
LEAST_REPLICAS = 2


class ElasticServers:
    """The server processes of one elastic job."""

    def __init__(self, settings: Settings, store: StoreServer) -> None:
        self._replicas = max(settings.replicas, LEAST_REPLICAS)
        self._plan = ServerPlan(settings.servers, self._replicas)
        self._store = store
        self._env: Mapping[str, str] = {}
        self._by_process: dict[ServerProcess, Worker] = {}
        self._ended: set[ServerProcess] = set()
        self._stopped: set[ServerProcess] = set()
        self._addresses: dict[str, ServerProcess] = {}
        self._count = 0
        # values of the store, appended by its threads
        self._published: deque[tuple[str, Value]] = deque()
        self._notes: list[str] = []

    @property
    def workers(self) -> list[Worker]:
        """All processes that have not ended."""
        return [
            worker for process, worker in self._by_process.items() if process not in self._ended
        ]

    def open(self, env: Mapping[str, str]) -> None:
        """Prepare to start processes with the variables ``env``, which ranks also get."""
        base = launcher_env.inherited(os.environ)
        # Servers must import this copy of Farandole.
        path = os.pathsep.join(filter(None, (PARENT, os.environ.get("PYTHONPATH", ""))))
        interface = self._store.interface
        self._env = {
            **base,
            **env,
            "PYTHONPATH": path,
            "FARANDOLE_SERVER_INTERFACE": interface,
            "OMP_NUM_THREADS": "1",
        }

    def see(self, key: str, value: Value) -> bool:
        """Record a value in the store, on a thread of the store; return whether a server has set
        it.
        """
        words = key.split("/")
        is_own = words[0] == "servers" and (words[1] == "chain" or words[2:3] == ["process"])
        if is_own:
            self._published.append((key, value))
        return is_own

    def keep(self, now: float) -> Iterator[tuple[Worker, str]]:
        """Start and stop processes as needed at the time ``now``; yield each new process with its
        label.

        Raises JobFailedError if one of the first processes cannot begin.
        """
        self._take_published()
        for process, worker in self._by_process.items():
            if process not in self._ended and (code := worker.poll()) is not None:
                self._ended.add(process)
                if process not in self._stopped:
                    self._end(process, worker, code, now)
        found = self._plan.decide(now)
        for number in found.lost:
            self._store.pop(keys.chain(number))
            self._notes.append(
                f"all processes of parameter server {number} were lost, and with them the state of"
                " its optimizer. Its weights are restored from a rank. More --replicas make this"
                " less likely"
            )
        for process in found.stop:
            self._stopped.add(process)
            self._by_process[process].kill()
        for process in found.start:
            worker = self._start(process, leads=process in found.lead)
            yield worker, f"{process.number}.{process.place}"

    def take_notes(self) -> list[str]:
        """Return the reports on losses since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def _take_published(self) -> None:
        while self._published:
            key, value = self._published.popleft()
            _, *words = key.split("/")
            text: Any = bytes(value).decode()
            if words[0] != "chain":
                process = ServerProcess(int(words[0]), int(words[2]))
                self._addresses[text] = process
                self._plan.begin(process)
            else:
                places = [self._addresses[address].place for address in json.loads(text)]
                self._plan.chain(int(words[1]), places)

    def _start(self, process: ServerProcess, *, leads: bool) -> Worker:
        env = {
            "FARANDOLE_SERVER": str(process.number),
            "FARANDOLE_SERVER_PLACE": str(process.place),
            "FARANDOLE_SERVER_LEADS": str(int(leads)),
        }
        safe = ["-P"] if sys.version_info >= (3, 11) else []
        command = [sys.executable, *safe, "-m", "farandole.core.ps"]
        slot = Slot(FIRST_SLOT + self._count, socket.gethostname(), process.number, 1, 0, 1, 1)
        self._count += 1
        worker = start_ranks([slot], command, {**self._env, **env})[0]
        self._by_process[process] = worker
        return worker

    def _end(self, process: ServerProcess, worker: Worker, code: int, now: float) -> None:
        early = self._plan.end(process, now)
        name = f"parameter server {process.number} (process {process.place})"
        if early and process.place < self._replicas:
            raise JobFailedError(
                f"{name} on {worker.slot.host} {describe(code)} before it could serve. Ranks cannot"
                " train without it: restart the job.",
                rank=-1,
                host=worker.slot.host,
                exit_code=exit_status(code),
            )
        logger.info("%s %s; it is replaced", name, describe(code))
        if code:
            self._notes.append(f"{name} {describe(code)}; another process takes its place")
