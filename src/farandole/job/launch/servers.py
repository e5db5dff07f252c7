"""The job's parameter servers: processes that the driver starts on the first request of a rank.

A single server runs on the driver's host; several run on the ranks' hosts in turn, if those are
other hosts.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Container, Mapping, Sequence

from farandole.base.package import PARENT
from farandole.base.types import Slot
from farandole.errors import counted
from farandole.job.config import Settings
from farandole.job.launch import launcher_env
from farandole.job.launch.contract import Allocation, Serving, Worker
from farandole.job.launch.explain.events import Verdict
from farandole.job.launch.explain.exit_codes import describe, exit_status
from farandole.job.launch.processes import start_ranks
from farandole.job.report import keys
from farandole.net.store import StoreServer


class ServerProcesses:
    """The server processes of a job of ``np`` ranks. ``wanted``: a rank has requested them."""

    def __init__(self, np: int, settings: Settings, store: StoreServer) -> None:
        self.workers: Sequence[Worker] = ()
        self.wanted = False
        self._codes: dict[int, int] = {}  # exit codes by index
        self._np = np
        self._settings = settings
        self._store = store

    def start(self, env: Mapping[str, str], allocation: Allocation | None) -> None:
        interface = self._store.interface
        self.workers = start_servers(self._np, self._settings, env, interface, allocation)

    def poll(self) -> None:
        """Record the servers that have ended."""
        for index, worker in enumerate(self.workers):
            if index not in self._codes and (code := worker.poll()) is not None:
                self._codes[index] = code

    def verdict(self, tails: Mapping[int, str]) -> Verdict | None:
        """Return the cause of the job's failure if it is a server that has ended, else None.

        ``tails`` are the last lines of stderr by rank; servers follow the job's ranks.
        """
        if not self._codes:
            return None
        return verdict(
            self._codes,
            self._settings.replicas,
            {rank - self._np: tail for rank, tail in tails.items() if rank >= self._np},
            [worker.slot.host for worker in self.workers],
            {index for index in self._codes if self._store.get(keys.server("", index)) is not None},
        )

    def describe(self) -> str:
        """Return the number of running servers, for the status line."""
        running = len(self.workers) - len(self._codes)
        return f", {counted(running, 'parameter server')}" if self.workers else ""

    def are_over(self) -> bool:
        return not any(worker.alive() for worker in self.workers)


def start_servers(
    np: int,
    settings: Settings,
    env: Mapping[str, str],
    interface: str,
    allocation: Allocation | None,
) -> Sequence[Worker]:
    """Start one process for each server and replica, with a server's replicas on one host.

    - ``env``: As for the ranks.
    - ``interface``: The address on the driver's host to listen on, as the job's store does.
    - ``allocation``: The ranks' allocation.

    The slots have ranks after the job's ranks.
    """
    count, host = settings.servers * settings.replicas, socket.gethostname()
    envs = [{"FARANDOLE_SERVER": str(index), "OMP_NUM_THREADS": "1"} for index in range(count)]
    command = [
        sys.executable,
        *(["-P"] if sys.version_info >= (3, 11) else []),
        "-m",
        "farandole.core.ps",
    ]
    if settings.servers > 1 and isinstance(allocation, Serving):
        return allocation.serve(command, [{**env, **own} for own in envs], settings.replicas)
    slots = [Slot(np + index, host, index, count, 0, 1, count) for index in range(count)]
    base = launcher_env.inherited(os.environ)
    # Servers must import this copy of Farandole.
    path = os.pathsep.join(filter(None, (PARENT, os.environ.get("PYTHONPATH", ""))))
    base |= {**env, "PYTHONPATH": path, "FARANDOLE_SERVER_INTERFACE": interface}
    return start_ranks(slots, command, base, envs)


def name(index: int, replicas: int) -> str:
    """Return a server process's name for messages. ``index`` counts replicas too."""
    number, replica = divmod(index, replicas)
    return f"parameter server {number}{f', replica {replica},' if replica else ''}"


def verdict(
    codes: Mapping[int, int],
    replicas: int,
    tails: Mapping[int, str],
    hosts: Sequence[str],
    begun: Container[int],
) -> Verdict | None:
    """Return the cause of the job's failure from the servers that have ended, by index. Pure.

    It is a server whose replicas have all ended, or one that ended before it had ``begun``, because
    ranks would wait for it. ``tails`` are the last lines on stderr; ``hosts`` are those for all
    servers.
    """
    for index, code in codes.items():
        number = index // replicas
        early = index not in begun
        if early or all(
            place in codes for place in range(number * replicas, (number + 1) * replicas)
        ):
            text = f"{name(index, replicas)} on {hosts[index]} {describe(code)}"
            lines = [text[:1].upper() + text[1:]]
            if tail := tails.get(index, "").strip("\n"):
                lines.append(f"Its last lines on stderr:\n{tail}")
            if early:
                lines.append("Ranks cannot train without its address: restart the job.")
            else:
                why = "--replicas 2 would have kept it" if replicas == 1 else "no replica is left"
                lines.append(f"The model state it held is lost: {why}.")
            return Verdict(-1, 0.0, exit_status(code), "\n".join(lines))
    return None
