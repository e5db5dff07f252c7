"""Identities of processes that stay unique when the system reuses process ids."""

from __future__ import annotations

import os
import socket
from typing import Any, NamedTuple

from farandole.base.host import boot_id, content


class ProcessIdentity(NamedTuple):
    """The identity of a process on one host since its last boot.

    - ``started``: The start time in clock ticks after boot, from ``/proc/<pid>/stat``.
    - ``boot``: The id of the host's boot.
    """

    host: str
    boot: str
    pid: int
    started: int

    @staticmethod
    def of(pid: int | None = None) -> ProcessIdentity:
        """Return the identity of process ``pid`` on this host, by default of this process.

        Raises ProcessLookupError if there is no such process.
        """
        pid = os.getpid() if pid is None else pid
        started = _start_time(pid)
        if started is None:
            raise ProcessLookupError(f"there is no process {pid} on this host")
        return ProcessIdentity(socket.gethostname(), boot_id(), pid, started)

    @staticmethod
    def from_json(data: Any) -> ProcessIdentity:
        return ProcessIdentity(data["host"], data["boot"], data["pid"], data["started"])

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    @property
    def here(self) -> bool:
        """Return whether the process was started on this host since it booted."""
        return self.boot == boot_id() if self.boot else self.host == socket.gethostname()

    def alive(self) -> bool:
        """Return whether the process still runs on this host.

        A zombie counts as ended. So does a process of another host or of an earlier boot.
        """
        return self.here and _start_time(self.pid) == self.started


def _start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks; None if it has ended."""
    # The name of the program, in parentheses, may contain spaces and parentheses.
    fields = content(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else None
