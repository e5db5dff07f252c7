"""Counts faults of hosts that do not end a process, such as damaged replicas. Pure."""

from __future__ import annotations

MOST = 2  # damaged replicas on one host, after which it is left out


class HostFaults:
    """The damaged replicas of a job, by host."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, host: str) -> bool:
        """Count a damaged replica. Return whether the host has to be left out now."""
        self._counts[host] = self._counts.get(host, 0) + 1
        return self._counts[host] == MOST

    def reason(self, host: str) -> str:
        """Return why a host is left out."""
        return f"{self._counts[host]} replicas were damaged there (FAR032)"
