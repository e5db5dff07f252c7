"""Tasks of a Slurm step: ``srun python train.py``.

The tasks agree through PMI if srun provides it, otherwise through a file in the user's home
directory, which the nodes share and only the user can read or replace.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from farandole.errors import AuthenticationError, RendezvousError, SettingsError
from farandole.job.bootstrap.contract import PMI, integers
from farandole.job.bootstrap.siblings import LOOK, NO_SIBLINGS, Siblings
from farandole.job.config import Placement

PAUSE = 0.05  # seconds between checks for the file
ENDED = "ended"  # the file's content if rank 0 ended before writing it
TOLD = 3.0  # seconds to keep this content, because other nodes may see the file late
CURE = (
    "set HOME to a folder shared by the nodes, use srun --mpi=pmi2, or start the job with:"
    " farandole run --launcher slurm"
)
_WHO = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID")
_MARKS = ("SLURM_JOB_ID", "SLURM_STEP_ID")
DAEMON = "slurmstepd"
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class SlurmBootstrap:
    name: ClassVar[str] = "slurm"
    absence_hint: ClassVar[str] = ""
    ends_together = False

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        who = integers(env, _WHO)  # these variables are missing in a batch script
        if who is None:
            return None
        rank, size, local_rank, node, _ = who
        tasks = tasks_per_node(
            env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or str(size)
        )
        hosts = [index for index, count in enumerate(tasks) if count > local_rank]
        return Placement(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=tasks[node],
            cross_rank=hosts.index(node),
            cross_size=len(hosts),
            hostname=env.get("SLURMD_NODENAME", ""),
            homogeneous=len(set(tasks)) == 1,
        )

    def siblings(self, placement: Placement, env: Mapping[str, str]) -> Siblings:
        here = [int(rank) for rank in env.get("SLURM_GTIDS", "").split(",") if rank.isdecimal()]
        return Siblings(env, here, _WHO[0], _MARKS, (DAEMON,))

    def starter(self, env: Mapping[str, str]) -> int:
        return Siblings({}, (0,), "", (), (DAEMON,)).daemon

    def broadcast(
        self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Siblings
    ) -> str:
        if PMI in os.environ:
            from farandole.job.bootstrap import local_barrier, pmi

            # PMI does not report which ranks are missing.
            number = _WHO[0] if local_barrier.is_only_host(placement) else _WHO[2]
            here = range(placement.local_size)
            neighbors = Siblings(os.environ, here, number, _MARKS, (DAEMON,))
            return pmi.broadcast(
                placement,
                text,
                timeout,
                siblings,
                arrive=lambda: local_barrier.wait(placement, timeout, neighbors),
            )
        path = meeting_point(os.environ)
        if placement.rank == 0:
            message = text()
            try:
                write(path, message)
            except OSError as error:
                raise SettingsError(
                    "ranks of a Slurm step meet through a file in the home directory, but rank 0"
                    f" cannot write {path} ({error.strerror}): {CURE}"
                ) from None
            return message
        message = read(path, placement, timeout, siblings)
        if message == ENDED:
            raise RendezvousError.ended([0])
        return message

    def on_assigned(self) -> None:
        with contextlib.suppress(OSError):
            meeting_point(os.environ).unlink()

    def abort(self) -> None:
        """Take no action: srun reports when other tasks end (--kill-on-bad-exit, --wait)."""


def tasks_per_node(text: str) -> list[int]:
    """Parse a list of task counts: ``"2(x3),1"`` gives [2, 2, 2, 1]."""
    counts: list[int] = []
    for item in text.split(","):
        match = _TASKS.fullmatch(item.strip())
        if match is None:
            raise SettingsError(f"SLURM_TASKS_PER_NODE={text!r} must be like 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def meeting_point(env: Mapping[str, str]) -> Path:
    """Return the path of the step's file, which is unique among the user's steps, even if a job
    is requeued.
    """
    facts = [env.get("SLURM_CLUSTER_NAME", ""), env["SLURM_JOB_ID"], env["SLURM_STEP_ID"]]
    name = "-".join([*facts, env.get("SLURM_RESTART_COUNT", "0")])
    try:
        home = Path.home()
    except RuntimeError as error:
        raise SettingsError(
            "ranks of a Slurm step meet through a file in the home directory, but this user has"
            f" none: {CURE}"
        ) from error
    return home / ".cache" / "farandole" / "slurm" / re.sub(r"[^\w.-]", "_", name)


def write(path: Path, text: str) -> None:
    """Write the file atomically, readable only by this user."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check(os.stat(path.parent, follow_symlinks=False), path.parent)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(fd, "w") as file:
        file.write(text)
    os.replace(new, path)


def read(path: Path, placement: Placement, timeout: float, siblings: Siblings = NO_SIBLINGS) -> str:
    """Wait for the file and return its content. Raises RendezvousError after ``timeout`` seconds.

    A task that detects the end of rank 0 informs all others through the file.
    """
    deadline, look = time.monotonic() + timeout, time.monotonic()
    while time.monotonic() < deadline:
        if time.monotonic() > look:
            look += LOOK
            if 0 in siblings.ended() and not path.exists():
                write(path, ENDED)
                time.sleep(TOLD)
                path.unlink(missing_ok=True)
                return ENDED
        with contextlib.suppress(FileNotFoundError):
            # Refresh a network file system, which may cache that the file does not exist.
            os.listdir(path.parent)
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
                _check(os.fstat(file.fileno()), path)
                return file.read()
        time.sleep(PAUSE)
    raise RendezvousError(
        f"rank {placement.rank} of this Slurm step did not find {path} within {timeout:g} s. Rank"
        " 0 writes it in init(), which every rank must call. If the nodes do not share the home"
        " directory, use srun --mpi=pmi2, or start the job with: farandole run --launcher slurm",
        [0],
    )


def _check(found: os.stat_result, path: Path) -> None:
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise AuthenticationError(
            f"{path} belongs to user {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):o}:"
            f" it contains the job's secret, so it must belong to user {os.geteuid()} and be"
            f" closed to all others (chmod go= {path})"
        )


def expand_hosts(text: str) -> list[str]:
    """Expand Slurm's host list: ``"gpu[01-03,7],login"`` gives gpu01, gpu02, gpu03, gpu7 and
    login.
    """
    return [host for item in _items(text) for host in _expanded(item)]


def _items(text: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    yield from (match[0] for match in re.finditer(r"(?:[^,\[]|\[[^\]]*\])+", text))


def _expanded(item: str) -> Iterator[str]:
    before, bracket, rest = item.partition("[")
    if not bracket:
        yield before
        return
    ranges, _, after = rest.partition("]")
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for end in _expanded(after):
                yield f"{before}{number:0{len(first)}d}{end}"
