"""The facts on a run's page."""

from __future__ import annotations

import os
from typing import Any

from farandole.dashboard.server.rank_table import rank_table
from farandole.job.runs.folder import CANCEL, RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import RunState
from farandole.jobs.details import details
from farandole.jobs.metrics import names, ranks
from farandole.jobs.references import listed
from farandole.jobs.summary import summary

_MOST_RANKS = 64  # ranks whose metric names are read


def facts(folder: RunFolder, home: RunsHome) -> dict[str, Any]:
    """Return all facts about a run. Raises RunError if its folder is damaged.

    These are the entries of ``Run.details()`` and:

    - ``last_values``, ``automatic``, ``logged_parameters``, ``findings``, ``tensorboard``: see
      ``farandole.jobs.summary``.
    - ``states``: The states with their times, oldest first.
    - ``ranks``: One entry per rank (see ``rank_table``), in place of their number.
    - ``metrics``: Names of the program's metrics by rank.
    - ``automatic_metrics``: Names of Farandole's automatic metrics by rank.
    - ``children``: Ids, names and states of the runs submitted by this run.
    - ``actions``: ``stop``, ``rerun``, or both.
    - ``stopping``: Whether a stop of an active run has been requested.
    - ``queue_position``: The number of queued runs on the same target that start earlier; None
      unless this run is queued.
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
        "ranks": rank_table(folder),
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
    """Return the currently possible actions: ``stop``, ``rerun``, both or none."""
    found = [] if folder.end() else ["stop"]
    spec = folder.spec()
    tracked = folder.submitted().get("tracked")
    if spec.command or (os.path.exists(folder.file("function.pkl")) and not tracked):
        found.append("rerun")
    return found


def queue_position(folder: RunFolder, home: RunsHome) -> int | None:
    """Return the number of queued runs on the same target that start earlier.

    None unless this run is queued.
    """
    if folder.state() is not RunState.QUEUED:
        return None
    spec, own = folder.spec(), folder.submitted()["number"]
    others = listed(home, "state = 'queued' and target = ?", (spec.target,))
    return sum(
        (-RunFolder(row.path).spec().priority, row.number) < (-spec.priority, own)
        for row in others
        if row.run_id != folder.run_id
    )
