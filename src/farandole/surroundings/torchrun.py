"""Processes of torchrun.

Those of one host tell each other the invitation by a file for this user only. Those of several have nothing but
torchrun's store, which answers anybody who reaches it: such a job is as safe as torch.distributed itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from farandole.config import Placement
from farandole.errors import RendezvousError, SettingsError
from farandole.surroundings.siblings import NOBODY, Siblings
from farandole.surroundings.slurm import read, write
from farandole.surroundings.variables import numbers

_WHO = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


class Torchrun:
    name: ClassVar[str] = "torchrun"
    ends_together = False

    def surroundings(self, env: Mapping[str, str]) -> Placement | None:
        # Others set RANK and its like, too: only torchrun tells the number of its run.
        who = numbers(env, _WHO) if "TORCHELASTIC_RUN_ID" in env else None
        if who is None:
            return None
        rank, size, local_rank, local_size, node, nodes = who
        return Placement(
            rank=rank, size=size, local_rank=local_rank, local_size=local_size, cross_rank=node, cross_size=nodes,
            hostname=socket.gethostname(),
        )  # fmt: skip

    def siblings(self, placement: Placement, env: Mapping[str, str]) -> Siblings:
        return NOBODY

    def broadcast(self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Siblings) -> str:
        if placement.local_size < placement.size:
            return _through_store(placement, text, timeout)
        path = meeting_point(os.environ)
        if placement.rank == 0:
            told = text()
            write(path, told)
            return told
        try:
            return read(path, placement, timeout, siblings)
        except RendezvousError as error:
            raise RendezvousError.late([0], timeout) from error

    def settled(self) -> None:
        with contextlib.suppress(OSError):
            meeting_point(os.environ).unlink()

    def abort(self) -> None:
        """torchrun ends the others itself."""


def meeting_point(env: Mapping[str, str]) -> Path:
    """The file of one start of the ranks: all are children of one agent."""
    facts = [env["TORCHELASTIC_RUN_ID"], str(_agent(env)), env.get("TORCHELASTIC_RESTART_COUNT", "0")]
    name = re.sub(r"[^\w.-]", "_", "-".join([socket.gethostname(), *facts]))
    return Path.home() / ".cache" / "farandole" / "torchrun" / name


def _agent(env: Mapping[str, str]) -> int:
    """The process that started this rank: the parent, or that of a script around the program."""
    mine = {f"{name}={env.get(name, '')}".encode() for name in ("TORCHELASTIC_RUN_ID", "RANK", "MASTER_PORT")}
    pid = os.getppid()
    with contextlib.suppress(OSError, ValueError, IndexError):  # it cannot be seen
        while mine <= {*Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def _through_store(placement: Placement, text: Callable[[], str], timeout: float) -> str:
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise SettingsError(
            f"torchrun started this process as rank {placement.rank} of {placement.size} on several hosts, and keeps "
            "no store for its ranks. Start it with --rdzv-backend c10d, or the job with: farandole run"
        )
    store_of: Any = _stores()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    key = f"farandole/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    try:
        store = store_of(host, port, None, False, timedelta(seconds=timeout))
        comes = f"{key}/comes/{placement.rank}"
        time = store.add(comes, 1)  # programs may call shutdown() and init() again
        if placement.rank == 0:
            store.set(f"{key}/{time}", text())
        try:
            return bytes(store.get(f"{key}/{time}")).decode()
        except RuntimeError:
            store.add(comes, -1)
            raise
    except RuntimeError as error:
        raise RendezvousError(f"rank 0 did not reach init() within {timeout:g} s: {error}", [0]) from error


def _stores() -> Any:
    """torch.distributed's class, which is there: torchrun is its own."""
    from torch.distributed import TCPStore

    return TCPStore
