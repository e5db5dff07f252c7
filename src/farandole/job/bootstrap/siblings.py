"""Which ranks of this host have ended, of those that a cluster's own command has started.

Who waits in ``init()`` for a rank that ended before it waits in vain, and nobody else says so. The
processes of a rank, and of what it runs in, are those with its number among their variables. Where
processes of the job cannot be seen (a container for each rank, another user's), no rank is said to
have ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# seconds for which nothing of a rank must have been there: all start at once, but not in one moment
GONE = 1.0
LOOK = 0.5  # seconds between looks of those who wait
# children of daemons that are no ranks: they start daemons on other hosts
REMOTE = ("ssh", "rsh", "srun", "qrsh")


class Siblings:
    """The ranks ``ranks`` of this host. ``number``: the variable with a rank's number; ``marks``:
    variables that are the same in all processes of the job, though not always in this one alone;
    ``daemons``: names of the programs that start ranks here.
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
        self._missed: dict[int, float] = {}  # since when nothing of a rank has been there
        self._daemons = daemons
        self.daemon = self._daemon_above(os.getpid()) if ranks else 0
        # Tells the jobs of a host apart; empty where processes of this one cannot be seen.
        self.job = (
            "-".join([str(self.daemon), *(env[name] for name in marks if name in env)])
            if self.daemon
            else ""
        )

    def ended(self) -> list[int]:
        """The ranks of which nothing has been left for a while."""
        alive = self._alive() if self.daemon else None
        if alive is None:
            return []
        now = time.monotonic()
        self._missed = {
            rank: self._missed.get(rank, now) for rank in self._ranks if rank not in alive
        }
        return [rank for rank, since in self._missed.items() if now - since >= GONE]

    def _alive(self) -> set[int] | None:
        """The ranks that have a process; None if something below the daemon may be any rank."""
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
        """Has this process been forked by the daemon, to become a rank?"""
        name, state, parent = self._stat(pid)
        return parent == self.daemon and state not in "ZX" and name not in REMOTE

    def _daemon_above(self, pid: int) -> int:
        """The nearest ancestor that is one of the daemons; 0 if there is none. All that it starts
        can be seen here.
        """
        while pid:
            name, _, parent = self._stat(pid)
            if name in self._daemons:
                return pid
            pid = parent
        return 0

    def _stat(self, pid: int) -> tuple[str, str, int]:
        """Name, state, parent."""
        try:
            name, _, rest = (
                (self._proc / str(pid) / "stat").read_text().partition("(")[2].rpartition(")")
            )
        except OSError:
            return "", "X", 0
        return name, rest.split()[0], int(rest.split()[1])


NOBODY = Siblings({}, (), "", (), ())
