"""The facts about one run for its page."""

from __future__ import annotations

import os
from typing import Any

from farandole.job.runs import journal
from farandole.job.runs.folder import CANCEL, RunFolder, read_json
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import RunState
from farandole.jobs.details import details
from farandole.jobs.metrics import names, ranks
from farandole.jobs.references import listed
from farandole.jobs.summary import summary

_MOST_RANKS = 64  # ranks whose names of metrics are read


def facts(folder: RunFolder, home: RunsHome) -> dict[str, Any]:
    """Return all facts about a run.

    These are the entries of ``Run.details()`` and:

    - ``last_values``, ``automatic``, ``logged_parameters``, ``findings``, ``tensorboard``: see
      ``farandole.jobs.summary``.
    - ``states``: The states with their times, oldest first.
    - ``ranks``: One entry per rank (see ``rank_facts``), in place of their number.
    - ``metrics``: Names of the program's metrics by rank; ``automatic_metrics``: of Farandole's.
    - ``children``: Ids, names and states of the runs that this run has submitted.
    - ``actions``: ``stop``, ``rerun``, or both.
    - ``stopping``: Whether a request to stop the run has been made.
    - ``queue_position``: The number of runs on the same target that come first; None unless queued.
    """
    found = details(folder)
    noted = summary(folder)
    measured = ranks(folder)[:_MOST_RANKS]
    return {
        **found,
        "tags": folder.tags(),
        "last_values": noted.pop("metrics"),
        **noted,
        "states": [
            {name: event.get(name) for name in ("state", "time", "attempt", "cause", "why")}
            for event in folder.events()
            if event.get("event") == "state"
        ],
        "ranks": rank_facts(folder),
        "metrics": {rank: names(folder, rank) for rank in measured},
        "automatic_metrics": {rank: names(folder, rank, automatic=True) for rank in measured},
        "children": [
            {"id": row.run_id, "name": row.name, "state": row.state.value}
            for row in reversed(listed(home, "parent = ?", (folder.run_id,)))
        ],
        "actions": actions(folder),
        "stopping": folder.end() is None and folder.requested(CANCEL) is not None,
        "queue_position": queue_position(folder, home),
    }


def actions(folder: RunFolder) -> list[str]:
    """Return what can be done with a run now."""
    found = [] if folder.end() else ["stop"]
    spec = folder.spec()
    tracked = folder.submitted().get("tracked")
    if spec.command or (os.path.exists(folder.file("function.pkl")) and not tracked):
        found.append("rerun")
    return found


def queue_position(folder: RunFolder, home: RunsHome) -> int | None:
    """Return the number of queued runs on the same target that start before this one."""
    if folder.state() is not RunState.QUEUED:
        return None
    spec, own = folder.spec(), folder.submitted()["number"]
    others = listed(home, "state = 'queued' and target = ?", (spec.target,))
    return sum(
        (-RunFolder(row.path).spec().priority, row.number) < (-spec.priority, own)
        for row in others
        if row.run_id != folder.run_id
    )


def rank_facts(folder: RunFolder) -> list[dict[str, Any]]:
    """Return one dict per rank: ``rank``, ``node``, ``host``, ``state``, ``waiting_for`` and
    ``log_bytes``.
    """
    resources = folder.spec().resources
    live = {
        each["rank"]: each
        for each in (read_json(folder.file("status.json")) or {}).get("ranks", [])
    }
    found = []
    for rank in range(resources.ranks):
        known = live.get(rank, {})
        found.append(
            {
                "rank": rank,
                "node": rank // resources.ranks_per_node,
                "host": known.get("host") or _host(folder, rank),
                "state": known.get("state", ""),
                "waiting_for": known.get("waiting_for", []),
                "log_bytes": _size(folder.log_of(rank)),
            }
        )
    return found


def _host(folder: RunFolder, rank: int) -> str:
    """Return the host on which a rank has recorded metrics; empty if it has not."""
    for record in journal.read(folder.metrics_of(rank), 0, 1 << 12).records:
        if isinstance(record, dict) and record.get("kind") == "process":
            return str(record.get("host", ""))
    return ""


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
