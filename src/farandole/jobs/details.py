"""The facts about a run as plain data, for people and programs."""

from __future__ import annotations

import time
from typing import Any

from farandole.job.runs.folder import RunFolder, read_json
from farandole.job.runs.spec import Resources
from farandole.job.runs.states import RunState
from farandole.jobs import rank_journal
from farandole.jobs.rank_journal import RankRecordsRead


def details(folder: RunFolder) -> dict[str, Any]:
    """Return all facts about a run: its request, times, state, cause and files.

    Raises RunError if the folder is damaged.
    """
    spec, submitted, end = folder.spec(), folder.submitted(), folder.end()
    times = state_times(folder)
    seconds, known = duration(folder), rank_journal.read(folder)
    artifacts = (read_json(folder.file("artifacts.json")) or {}).get("artifacts", [])
    return {
        "run_id": folder.run_id,
        "experiment": spec.experiment,
        "name": spec.name,
        "state": folder.state().value,
        "cause": end["cause"] if end else "",
        "exit_code": end["exit_code"] if end else None,
        "command": list(spec.command),
        "target": spec.target,
        **_size(spec.resources, known),
        "rank_seconds": _rank_seconds(folder, known, seconds),
        "resources": spec.to_json()["resources"],
        "settings": dict(spec.settings),
        "environment": spec.to_json()["environment"],
        "inputs": spec.to_json()["inputs"],
        "parameters": dict(spec.parameters),
        "tags": dict(spec.tags),
        "parent": spec.parent,
        "submitted": submitted["time"],
        "started": times.get(RunState.RUNNING),
        "ended": end["time"] if end else None,
        "seconds": seconds,
        "attempts": sum(event.get("state") == "running" for event in folder.events()),
        "submission": submitted,
        "messages": [
            event["text"]
            for event in folder.events()
            if event["event"] in ("note", "warning") and "text" in event
        ],
        "artifacts": artifacts,
        "folder": folder.path,
    }


def _size(resources: Resources, known: RankRecordsRead) -> dict[str, Any]:
    """Return the numbers of nodes and ranks; of an elastic run, the latest ones, with all
    memberships of its latest attempt.
    """
    if not known.memberships:
        return {"nodes": resources.nodes, "ranks": resources.ranks, "memberships": []}
    memberships = [
        {
            "number": each.number,
            "time": each.time,
            "ranks": len(each.members),
            "processes": [process for process, _ in each.members],
            "hosts": list(dict.fromkeys(host for _, host in each.members)),
        }
        for each in known.memberships
    ]
    ranks = len(known.memberships[-1].members)
    nodes = -(-ranks // resources.ranks_per_node)
    return {"nodes": nodes, "ranks": ranks, "memberships": memberships}


def _rank_seconds(folder: RunFolder, known: RankRecordsRead, seconds: float | None) -> float | None:
    """Return the total duration of the ranks in the latest attempt; None before the start."""
    if seconds is None:
        return None
    if not known.memberships:
        return seconds * folder.spec().resources.ranks
    end = folder.end()
    return rank_journal.rank_seconds(known, end["time"] if end else time.time())


def state_times(folder: RunFolder) -> dict[RunState, float]:
    """Return the time at which the run last entered each state, in seconds since 1970."""
    return {
        RunState(event["state"]): event["time"]
        for event in folder.events()
        if event["event"] == "state"
    }


def duration(folder: RunFolder) -> float | None:
    """Return the seconds from the run's start to its end, or to now; None before the start."""
    started = state_times(folder).get(RunState.RUNNING)
    if started is None:
        return None
    end = folder.end()
    return max(0.0, (end["time"] if end else time.time()) - started)


def readable_duration(seconds: float | None) -> str:
    """Return a duration in readable form: ``8 s``, ``2:05 min``, ``3:12 h``."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 100:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"


def readable_time(seconds: float | None) -> str:
    """Return a local time to the second; empty for None."""
    if seconds is None:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (
        OverflowError,
        OSError,
        ValueError,
    ):  # a damaged file must not prevent a list of the other runs
        return "?"


def readable_size(size: int) -> str:
    """Return a number of bytes as text in the largest fitting unit."""
    amount, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
