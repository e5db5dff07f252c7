"""The ranks of a run: their hosts, their states, and the ranks that they wait for."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from farandole.job.runs import journal
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.spec import Resources
from farandole.jobs import rank_journal
from farandole.jobs.rank_journal import RankProcess, RankRecordsRead

_TAIL = 1 << 14  # bytes at the end of a journal that contain the latest samples
_SLOW = 0.2  # minimum share of its time that a rank waits for a slower rank to be reported
_MOST_ENDED = 20  # number of ended processes shown for an elastic run
_WAIT, _RATE = "training/wait_seconds_per_step", "training/steps_per_second"


class RankSamples(NamedTuple):
    """The latest records of a rank's waits for other ranks.

    - ``missing``: The ranks that the rank has awaited for seconds; empty without a wait.
    - ``names``: The collectives in which the rank waits.
    - ``share``: The share of its time that the rank spends waiting for slower ranks; None if
      unknown.
    """

    missing: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    share: float | None = None


def rank_table(folder: RunFolder) -> list[dict[str, Any]]:
    """Return one dict per rank. Raises RunError if the run's folder is damaged.

    - ``rank``, ``node``: Numbers from 0. In an elastic run, the rank of the latest membership; None
      for a process that has ended, up to 20 of them after the ranks.
    - ``process``: The number of the rank's process and log; differs from ``rank`` only in an
      elastic run.
    - ``host``: The name of the host; empty before the start.
    - ``state``: ``pending``, ``running``, ``waiting`` (for other ranks, for seconds),
      ``completed``, ``failed``, or ``ended`` if its exit code is unknown.
    - ``exit_code``: The exit code, or the negative number of the signal that ended the rank; None
      before the end.
    - ``waiting_for``: The ranks that the rank waits for in a collective. Without such a wait: the
      slowest rank, if the rank spends at least a fifth of its time waiting.
    - ``collectives``: The names of the collectives in which the rank waits.
    - ``wait_share``: The share of its time that the rank spends waiting for slower ranks, from 0 to
      1; None if unknown.
    - ``log_bytes``: The size of the rank's log.
    """
    known = rank_journal.read(folder)
    places = _places(folder.spec().resources, known)
    is_over = folder.end() is not None
    samples = {} if is_over else {each.rank: _samples(folder, each.rank) for each in places}
    slowest = _slowest(samples)
    found = [_row(folder, each, known, samples, slowest) for each in places]
    return found + _ended(folder, known, {each.process for each in places})


class _RankPlace(NamedTuple):
    """A rank, its node, and its process number, which is the rank in a run of a fixed size."""

    rank: int
    node: int
    process: int


def _places(resources: Resources, known: RankRecordsRead) -> list[_RankPlace]:
    """Return the ranks of a run; of an elastic run, the ranks of the latest membership."""
    per_node = resources.ranks_per_node
    if not known.memberships:
        return [_RankPlace(rank, rank // per_node, rank) for rank in range(resources.ranks)]
    members = known.memberships[-1].members
    hosts = list(dict.fromkeys(host for _, host in members))
    alone = len(hosts) == 1
    return [
        _RankPlace(rank, rank // per_node if alone else hosts.index(host), process)
        for rank, (process, host) in enumerate(members)
    ]


def _row(
    folder: RunFolder,
    place: _RankPlace,
    known: RankRecordsRead,
    samples: Mapping[int, RankSamples],
    slowest: int | None,
) -> dict[str, Any]:
    rank, process = place.rank, known.processes.get(place.process)
    own = samples.get(rank, RankSamples()) if process and process.code is None else RankSamples()
    slower = [slowest] if slowest not in (None, rank) and (own.share or 0.0) >= _SLOW else []
    return {
        "rank": rank,
        "process": place.process,
        "node": place.node,
        "host": _host(folder, process),
        "state": _state(process, own, folder.end() is not None),
        "exit_code": process.code if process else None,
        "waiting_for": list(own.missing) or slower,
        "collectives": list(own.names),
        "wait_share": own.share,
        "log_bytes": _size(folder.log_of(place.process)),
    }


def _ended(
    folder: RunFolder, known: RankRecordsRead, members: Collection[int]
) -> list[dict[str, Any]]:
    """Return a row, with ``rank`` None, for each of the latest ended processes of an elastic
    run.
    """
    ended = [
        number
        for number, each in known.processes.items()
        if known.memberships and number not in members and each.code is not None
    ]
    return [
        {
            "rank": None,
            "process": number,
            "node": 0,
            "host": _host(folder, known.processes[number]),
            "state": _state(known.processes[number], RankSamples(), folder.end() is not None),
            "exit_code": known.processes[number].code,
            "waiting_for": [],
            "collectives": [],
            "wait_share": None,
            "log_bytes": _size(folder.log_of(number)),
        }
        for number in ended[-_MOST_ENDED:]
    ]


def _host(folder: RunFolder, process: RankProcess | None) -> str:
    if process is None:
        return ""
    if process.host != "localhost":
        return process.host
    return str(folder.submitted().get("host", process.host))


def _state(process: RankProcess | None, samples: RankSamples, is_over: bool) -> str:
    if process is None:
        return "ended" if is_over else "pending"
    if process.code is not None:
        return "failed" if process.code else "completed"
    if is_over:
        return "ended"
    return "waiting" if samples.missing else "running"


def _slowest(samples: dict[int, RankSamples]) -> int | None:
    """Return the rank that waits least for other ranks; None unless two ranks have recorded
    waits.
    """
    shares = {rank: each.share for rank, each in samples.items() if each.share is not None}
    return min(shares, key=lambda rank: shares[rank]) if len(shares) > 1 else None


def _samples(folder: RunFolder, rank: int) -> RankSamples:
    path = folder.metrics_of(rank)
    found = RankSamples()
    for record in journal.read(path, max(0, _size(path) - _TAIL)).records:
        if not isinstance(record, dict):
            continue
        if record.get("kind") == "process":  # a new attempt
            found = RankSamples()
        elif record.get("kind") == "waiting":
            found = found._replace(missing=tuple(record["ranks"]), names=tuple(record["names"]))
        elif record.get("kind") == "system" and _WAIT in record["values"]:
            share = record["values"][_WAIT] * record["values"].get(_RATE, 0.0)
            found = found._replace(share=round(min(1.0, share), 3))
    return found


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
