"""The starts and ends of a run's ranks: ``ranks.jsonl`` in its folder.

Its records are ``{"slots": [[rank, host], ...], "time"}`` for each start of all ranks, and
``{"rank", "code", "time"}`` for each end. In an elastic run, processes are lost and added, and
process numbers replace ranks: ``{"process", "host", "time"}`` for each start, and ``{"membership",
"members": [[process, host], ...], "time"}``, in rank order, for each membership.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from farandole.base.types import Slot
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.journal import JournalWriter, records

_FILE = "ranks.jsonl"


class RankProcess(NamedTuple):
    """The latest process of a rank, or a process of an elastic run.

    - ``host``: Its host.
    - ``code``: Its exit code; None while it runs.
    - ``started``, ``ended``: In seconds since 1970; ``ended`` is None while it runs.
    """

    host: str
    code: int | None = None
    started: float = 0.0
    ended: float | None = None


class RunMembership(NamedTuple):
    """A membership of an elastic run.

    - ``number``: Its number within the attempt, from 1.
    - ``time``: Its beginning, in seconds since 1970.
    - ``members``: The process and host of each rank, in rank order.
    """

    number: int
    time: float
    members: tuple[tuple[int, str], ...]


class RankRecordsRead(NamedTuple):
    """The records of a run's latest attempt.

    ``processes``: by rank, or by number in an elastic run. ``memberships``: empty unless the run is
    elastic.
    """

    processes: dict[int, RankProcess]
    memberships: list[RunMembership]


class RankJournal:
    """Records the starts and ends of a run's ranks. A full disk does not end the run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def started(self, slots: Sequence[Slot]) -> None:
        self._append({"slots": [[slot.rank, slot.host] for slot in slots]})

    def ended(self, rank: int, code: int) -> None:
        self._append({"rank": rank, "code": code})

    def added(self, process: int, host: str) -> None:
        self._append({"process": process, "host": host})

    def formed(self, number: int, members: Sequence[tuple[int, str]]) -> None:
        self._append({"membership": number, "members": list(members)})
        with contextlib.suppress(OSError):
            hosts = list(dict.fromkeys(host for _, host in members))
            self._folder.record("membership", number=number, ranks=len(members), hosts=hosts)

    def _append(self, record: dict[str, Any]) -> None:
        with contextlib.suppress(OSError), JournalWriter(self._folder.file(_FILE)) as journal:
            journal.append({**record, "time": round(time.time(), 3)})


def read(folder: RunFolder) -> RankRecordsRead:
    """Return the processes and memberships of the run's latest attempt."""
    found: dict[int, RankProcess] = {}
    memberships: list[RunMembership] = []
    for record in records(folder.file(_FILE)):
        when = float(record.get("time", 0.0))
        if "slots" in record:
            found = {rank: RankProcess(host, started=when) for rank, host in record["slots"]}
        elif "membership" in record:
            members = tuple((process, host) for process, host in record["members"])
            memberships.append(RunMembership(record["membership"], when, members))
        elif "process" in record:
            if record["process"] == 0:  # a new attempt, or a restart
                found, memberships = {}, []
            found[record["process"]] = RankProcess(record["host"], started=when)
        elif record.get("rank") in found:
            known = found[record["rank"]]
            found[record["rank"]] = known._replace(code=record["code"], ended=when)
    return RankRecordsRead(found, memberships)


def processes(folder: RunFolder) -> dict[int, RankProcess]:
    """Return the latest process of each started rank; for an elastic run, each process by its
    number.
    """
    return read(folder).processes


def rank_seconds(found: RankRecordsRead, end: float) -> float:
    """Return the total duration of all processes in seconds; processes that are still running, or
    whose end was not recorded, count until ``end`` (seconds since 1970). Pure.
    """
    return sum(
        max(0.0, (end if each.ended is None else each.ended) - each.started)
        for each in found.processes.values()
    )
