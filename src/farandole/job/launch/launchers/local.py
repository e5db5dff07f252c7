"""The local launcher, whose ranks are processes of this machine, started by the driver."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import ClassVar

from farandole.base.host import cores
from farandole.base.types import Slot
from farandole.errors import SettingsError, counted
from farandole.job.config import Placement
from farandole.job.launch import launcher_env
from farandole.job.launch.contract import JobRequest
from farandole.job.launch.limits import crowding
from farandole.job.launch.plan import places, plan
from farandole.job.launch.processes import LocalWorker, start_ranks
from farandole.net.interfaces import is_here
from farandole.net.store import StoreServer


class LocalLauncher:
    """The launcher for this machine."""

    name: ClassVar[str] = "local"

    def affinity(self, request: JobRequest) -> int:
        return 1

    def allocate(self, request: JobRequest) -> LocalAllocation:
        slots = plan(request.hosts, request.np)
        for slot in slots:
            if not is_here(slot.host):
                raise SettingsError(
                    f"the local launcher starts processes on this machine only, and {slot.host!r}"
                    f" is not one of its names (localhost, {socket.gethostname()})"
                )
        return LocalAllocation(slots)

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        return Placement.from_env(env) if "FARANDOLE_RANK" in env else None


class LocalAllocation:
    """Slots on this machine: known immediately, and without agents between driver and ranks."""

    remote = False

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots

    def describe(self) -> str:
        return f"{counted(len(self._slots), 'rank')} on {places(self._slots)}, launcher local"

    def listen(self, secret: str) -> StoreServer:
        return StoreServer(secret)

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> Sequence[LocalWorker]:
        base = launcher_env.inherited(os.environ)
        return start_ranks(self._slots, command, {**base, **env})

    def slots(self) -> Sequence[Slot]:
        return self._slots

    def status(self) -> str:
        return ""

    def advice(self) -> str:
        return crowding(len(self._slots), cores())

    def close(self) -> None:
        """Take no action: the driver has already ended the ranks."""
