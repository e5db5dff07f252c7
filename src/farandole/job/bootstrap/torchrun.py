"""Processes of torchrun, and others with torch.distributed's variables.

torchrun's processes on one host share the invitation through a file that only this user can read.
On several hosts they use torchrun's store; other processes use a store that rank 0 serves at
``MASTER_ADDR`` and ``MASTER_PORT``. These stores answer any client, so such a job is as safe as
torch.distributed itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from farandole.errors import RendezvousError, SettingsError
from farandole.job.bootstrap.contract import integers
from farandole.job.bootstrap.siblings import NO_SIBLINGS, Siblings
from farandole.job.bootstrap.slurm import read, write
from farandole.job.config import Placement
from farandole.job.config.torchrun import AGENT_STORE

WHO = ("RANK", "WORLD_SIZE")
WHERE = ("MASTER_ADDR", "MASTER_PORT")
_AGAIN = 0.1  # seconds
_FILE = "invitation"  # in a separate folder
_WHO = (*WHO, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


class TorchrunBootstrap:
    name: ClassVar[str] = "torchrun"
    absence_hint: ClassVar[str] = ""
    ends_together = False

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        # Other launchers set RANK and similar variables too; only torchrun sets the id of its run.
        who = integers(env, _WHO) if "TORCHELASTIC_RUN_ID" in env else None
        if who is None:
            return None
        rank, size, local_rank, local_size, node, nodes = who
        return Placement(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            cross_rank=node,
            cross_size=nodes,
            hostname=socket.gethostname(),
        )

    def siblings(self, placement: Placement, env: Mapping[str, str]) -> Siblings:
        return NO_SIBLINGS

    def starter(self, env: Mapping[str, str]) -> int:
        return _agent(env)

    def broadcast(
        self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Siblings
    ) -> str:
        if placement.local_size < placement.size:
            return _through_store(placement, text, timeout)
        path = meeting_point(os.environ)
        if placement.rank == 0:
            message = text()
            write(path, message)
            return message
        try:
            return read(path, placement, timeout, siblings)
        except RendezvousError as error:
            raise RendezvousError.late([0], timeout) from error

    def on_assigned(self) -> None:
        path = meeting_point(os.environ)
        with contextlib.suppress(OSError):
            path.unlink()
            if path.name == _FILE:
                path.parent.rmdir()

    def abort(self) -> None:
        """Take no action: torchrun ends the other processes itself."""


class TorchVariablesBootstrap:
    """Processes of other launchers (Kubeflow's PyTorchJob, deepspeed), or started by hand."""

    name: ClassVar[str] = "torch"
    ends_together = False
    absence_hint: ClassVar[str] = (
        " RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment make this process one"
        " of several; to train alone, set FARANDOLE_SIZE=1."
    )

    def __init__(self) -> None:
        # Rank 0's store, kept until all ranks have read it; then init_process_group() needs the
        # address.
        self._serves: Any = None

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        who = integers(env, WHO)
        if who is None or not all(env.get(name) for name in WHERE) or "TORCHELASTIC_RUN_ID" in env:
            return None
        if importlib.util.find_spec("torch") is None:
            return None
        rank, size = who
        (local_rank,), (local_size,) = (
            integers(env, ("LOCAL_RANK",)) or [0],
            integers(env, ("LOCAL_WORLD_SIZE",)) or [1],
        )
        return Placement(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            hostname=socket.gethostname(),
        )

    def siblings(self, placement: Placement, env: Mapping[str, str]) -> Siblings:
        return NO_SIBLINGS

    def starter(self, env: Mapping[str, str]) -> int:
        return 0

    def broadcast(
        self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Siblings
    ) -> str:
        host, port = (os.environ[name] for name in WHERE)
        if placement.rank >= placement.size or not port.isdecimal():
            raise SettingsError(
                f"RANK={placement.rank} must be below WORLD_SIZE={placement.size}, and"
                f" MASTER_PORT={port!r} must be a number: set them for all ranks of a job, from"
                f" rank 0.{self.absence_hint}"
            )
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._meet(
                    host, int(port), placement.rank, text, max(1.0, deadline - time.monotonic())
                )
            except RuntimeError as error:
                # Reached a store of rank 0 that was ending.
                if placement.rank and time.monotonic() < deadline:
                    time.sleep(_AGAIN)
                    continue
                trouble = (
                    f"found no rank 0 there within {timeout:g} s"
                    if placement.rank
                    else "cannot serve there"
                )
                raise RendezvousError(
                    f"rank {placement.rank} of {placement.size} meets the others at {host}:{port}"
                    f" (MASTER_ADDR, MASTER_PORT), and {trouble}: {_first_line(error)}. All ranks"
                    " must use the same address and an unused port, and call init(); if starting"
                    f" takes longer, raise FARANDOLE_START_TIMEOUT.{self.absence_hint}",
                    [0] if placement.rank else [],
                ) from error

    def _meet(
        self, host: str, port: int, rank: int, text: Callable[[], str], timeout: float
    ) -> str:
        """Meet at the store and return rank 0's text. Raises RuntimeError."""
        serves = rank == 0
        # The options of init_process_group(), whose store is shared if it was created first.
        store = _stores()(
            host,
            port,
            None,
            serves,
            timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
        self._serves = store if serves else None
        return _broadcast_text(store, "farandole/init", rank, text)

    def on_assigned(self) -> None:
        self._serves = None

    def abort(self) -> None:
        """Take no action: each process ends by itself."""


def meeting_point(env: Mapping[str, str]) -> Path:
    """Return the path of the file for one start of the ranks, which are children of one agent."""
    facts = [
        env["TORCHELASTIC_RUN_ID"],
        str(_agent(env)),
        env.get("TORCHELASTIC_RESTART_COUNT", "0"),
    ]
    name = re.sub(r"[^\w.-]", "_", "-".join([socket.gethostname(), *facts]))
    home = _home()
    return (
        home / name
        if home
        else Path(tempfile.gettempdir()) / f"farandole-{os.geteuid()}-{name}" / _FILE
    )


def _home() -> Path | None:
    """Return the folder for all runs of this user; None without a writable home directory
    (containers).
    """
    try:
        folder = Path.home() / ".cache" / "farandole" / "torchrun"
    except RuntimeError:
        return None
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    return folder if os.access(there, os.W_OK | os.X_OK) else None


def _agent(env: Mapping[str, str]) -> int:
    """Return the process that started this rank: the parent, or the parent of a wrapper script."""
    mine = {
        f"{name}={env.get(name, '')}".encode()
        for name in ("TORCHELASTIC_RUN_ID", "RANK", "MASTER_PORT")
    }
    pid = os.getppid()
    with contextlib.suppress(OSError, ValueError, IndexError):  # the process is not visible
        while mine <= {*Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def _through_store(placement: Placement, text: Callable[[], str], timeout: float) -> str:
    if os.environ.get(AGENT_STORE) != "True":
        raise SettingsError(
            f"torchrun started this process as rank {placement.rank} of {placement.size} on"
            " several hosts, but provides no store for its ranks. Start torchrun with"
            " --rdzv-backend c10d, or the job with: farandole run"
        )
    store_of: Any = _stores()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    key = f"farandole/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    try:
        return _broadcast_text(
            store_of(host, port, None, False, timedelta(seconds=timeout)), key, placement.rank, text
        )
    except RuntimeError as error:
        raise RendezvousError(
            f"rank 0 did not reach init() within {timeout:g} s: {error}", [0]
        ) from error


def _broadcast_text(store: Any, key: str, rank: int, text: Callable[[], str]) -> str:
    """Send rank 0's ``text()`` to every rank through a torch.distributed store, under ``key``.

    Raises RuntimeError.
    """
    comes = f"{key}/comes/{rank}"
    times = store.add(comes, 1)  # programs may call init() again after shutdown()
    if rank == 0:
        store.set(f"{key}/{times}", text())
    try:
        return bytes(store.get(f"{key}/{times}")).decode()
    except RuntimeError:
        store.add(comes, -1)
        raise


def _stores() -> Any:
    """Return torch.distributed's store class; torch is installed, because torchrun is part of
    it.
    """
    from torch.distributed import TCPStore

    return TCPStore


def _first_line(error: Exception) -> str:
    """Return the first line of an error, without torch's C++ stack."""
    return str(error).strip().partition("\n")[0].rstrip(".")
