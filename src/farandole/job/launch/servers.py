"""The job's parameter servers: processes that the driver starts when a rank first asks for them.
One server is on the driver's host; several are on the ranks' hosts in turn, where those are others.
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
    """The server processes of a job of ``np`` ranks. ``wanted``: a rank has asked for them."""

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
        """Note which have ended."""
        for index, worker in enumerate(self.workers):
            if index not in self._codes and (code := worker.poll()) is not None:
                self._codes[index] = code

    def verdict(self, tails: Mapping[int, str]) -> Verdict | None:
        """Return the cause of the job's failure, if a server that has ended is it. ``tails``: by
        rank, after those of the job.
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
    """One process for each server and replica, those of one server next to each other. ``env``: as
    for the ranks; ``interface``: where to listen on the driver's host, as the job's store does;
    ``allocation``: of the ranks. Their slots have the ranks after those of the job.
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
    # this Farandole, no other
    path = os.pathsep.join(filter(None, (PARENT, os.environ.get("PYTHONPATH", ""))))
    base |= {**env, "PYTHONPATH": path, "FARANDOLE_SERVER_INTERFACE": interface}
    return start_ranks(slots, command, base, envs)


def name(index: int, replicas: int) -> str:
    """A server process, for messages. ``index``: among all, replicas included."""
    number, replica = divmod(index, replicas)
    return f"parameter server {number}{f', replica {replica},' if replica else ''}"


def verdict(
    codes: Mapping[int, int],
    replicas: int,
    tails: Mapping[int, str],
    hosts: Sequence[str],
    begun: Container[int],
) -> Verdict | None:
    """Of the servers that have ended, by index: the cause of the job's failure if all replicas of
    one are among them, or one that is not among those that have ``begun``, for which ranks would
    wait. Pure. ``tails``: the last lines on stderr; ``hosts``: of all.
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
                lines.append(
                    "Ranks did not have its address yet, and cannot begin without it: start the job"
                    " again."
                )
            else:
                kept = (
                    "--replicas 2 would have kept"
                    if replicas == 1
                    else "no replica of it is left to keep"
                )
                lines.append(f"What it held of the model is lost: {kept} it.")
            return Verdict(-1, 0.0, exit_status(code), "\n".join(lines))
    return None
