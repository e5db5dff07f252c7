"""Faults of hosts that do not end a process: damaged replicas, and slow ranks."""

from __future__ import annotations

import json
from collections import deque

from farandole.base.log import logger
from farandole.job.elastic.membership import Membership

# Units of a straggler's times, by their name in a report.
_UNITS = {"step": "a step", "collectives": "between a few collectives"}
MOST = 2  # number of damaged replicas on a host after which it is excluded


class HostFaults:
    """The faults of a job's hosts, as reported by ranks."""

    def __init__(self) -> None:
        self._heard: deque[tuple[str, int, list[int], str]] = deque()
        self._counts: dict[str, int] = {}  # damaged replicas by host

    def hear(self, kind: str, rest: str, value: bytes | bytearray | memoryview) -> None:
        """Record a report of a rank; thread-safe.

        ``kind``: ``damaged`` or ``straggler``. ``rest``: the number of a membership, a slash, and
        any string. ``value``: see ``job.report.keys``. A malformed report is logged and dropped.
        """
        try:
            number, facts = int(rest.partition("/")[0]), json.loads(bytes(value))
            if kind == "damaged":
                self._heard.append((kind, number, [int(rank) for rank in facts], ""))
            else:
                seconds, others = float(facts["seconds"]), float(facts["others"])
                reason = (
                    f"rank {int(facts['rank'])} computes {seconds:.3g} s {_UNITS[facts['unit']]}"
                    f" there, the others {others:.3g} s (--leave-out-stragglers)"
                )
                self._heard.append((kind, number, [int(facts["rank"])], reason))
        except (ValueError, TypeError, LookupError) as error:
            logger.warning("ignoring %r in the job's store: %s", f"{kind}/{rest}", error)

    def take(self, membership: Membership) -> list[tuple[str, str]]:
        """Return the hosts to exclude now, with the reasons. Reports about ranks of an earlier
        membership are dropped.
        """
        found = []
        while self._heard:
            kind, number, ranks, reason = self._heard.popleft()
            if number != membership.number:
                continue
            members = membership.members
            for host in [members[rank].host for rank in ranks if rank < len(members)]:
                if kind == "straggler":
                    found.append((host, reason))
                    continue
                self._counts[host] = self._counts.get(host, 0) + 1
                if self._counts[host] == MOST:
                    found.append((host, f"{MOST} replicas were damaged there (FAR032)"))
        return found
