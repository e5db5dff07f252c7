"""Detection of ended ranks on this host, for ranks started by a cluster's command.

A rank would wait in ``init()`` forever for a rank that has ended, and no other component reports
it. A rank's processes are those with its number in their environment. If the job's processes are
not visible (one container per rank, or another user's processes), no rank is reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# Seconds without a process before a rank counts as ended; ranks do not start simultaneously.
GONE = 1.0
LOOK = 0.5  # seconds between checks by waiting ranks
# Children of daemons that are not ranks: they start daemons on other hosts.
REMOTE = ("ssh", "rsh", "srun", "qrsh")


class Siblings:
    """The ranks of this host.

    - ``number``: The variable that holds a rank's number.
    - ``marks``: Variables that are the same in all processes of the job, though not always unique
      to it.
    - ``daemons``: Names of the programs that start ranks on this host.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        ranks: Sequence[int],
        number: str,
        marks: Sequence[str],
        daemons: Sequence[str],
        proc: Path = Path("/proc"),
    ) -> None:
        self._ranks = ranks
        self._number = number.encode()
        self._proc = proc
        self._marks = {f"{name}={env[name]}".encode() for name in marks if name in env}
        self._missed: dict[int, float] = {}  # times since which ranks have had no process
        self._daemons = daemons
        self.daemon = self._daemon_above(os.getpid()) if ranks else 0
        # Distinguishes the jobs of a host; empty if this job's processes are not visible.
        self.job = (
            "-".join([str(self.daemon), *(env[name] for name in marks if name in env)])
            if self.daemon
            else ""
        )

    def ended(self) -> list[int]:
        """Return the ranks that have had no process for a while."""
        alive = self._alive() if self.daemon else None
        if alive is None:
            return []
        now = time.monotonic()
        self._missed = {
            rank: self._missed.get(rank, now) for rank in self._ranks if rank not in alive
        }
        return [rank for rank, since in self._missed.items() if now - since >= GONE]

    def _alive(self) -> set[int] | None:
        """Return the ranks that have a process; None if an unreadable process below the daemon
        may be any rank.
        """
        found = set()
        for entry in self._proc.iterdir():
            try:
                if not entry.name.isdigit() or entry.stat().st_uid != os.geteuid():
                    continue
                words = (entry / "environ").read_bytes().split(b"\0")
            except PermissionError:
                if self._daemon_above(int(entry.name)):
                    return None
                continue
            except OSError:  # it has ended
                continue
            numbers = [
                value
                for name, _, value in (word.partition(b"=") for word in words)
                if name == self._number
            ]
            if (
                numbers
                and self._marks <= set(words)
                and self._daemon_above(int(entry.name)) in (0, self.daemon)
            ):
                found |= {int(value) for value in numbers if value.isdigit()}
            if not numbers and self._begins(int(entry.name)):
                return None
        return found

    def _begins(self, pid: int) -> bool:
        """Return whether the daemon has forked this process to become a rank."""
        name, state, parent = self._stat(pid)
        return parent == self.daemon and state not in "ZX" and name not in REMOTE

    def _daemon_above(self, pid: int) -> int:
        """Return the nearest ancestor that is one of the daemons, 0 if there is none.

        All processes that it starts are visible here.
        """
        while pid:
            name, _, parent = self._stat(pid)
            if name in self._daemons:
                return pid
            pid = parent
        return 0

    def _stat(self, pid: int) -> tuple[str, str, int]:
        """Return a process's name, state and parent."""
        try:
            name, _, rest = (
                (self._proc / str(pid) / "stat").read_text().partition("(")[2].rpartition(")")
            )
        except OSError:
            return "", "X", 0
        return name, rest.split()[0], int(rest.split()[1])


NO_SIBLINGS = Siblings({}, (), "", (), ())
