"""Access to the recorded metrics of a run's ranks.

By default, functions read the program's metrics. ``automatic=True`` reads Farandole's automatic
metrics: memory, processor, training speed.
"""

from __future__ import annotations

import os
import re
from typing import Any

from farandole.job.runs.folder import RunFolder
from farandole.job.tracking.tracker import PARAMETERS
from farandole.jobs.metrics.columns import RankColumns


def ranks(folder: RunFolder) -> list[int]:
    """Return the ranks that have a journal of metrics, in order."""
    try:
        files = os.listdir(folder.file("metrics"))
    except FileNotFoundError:
        return []
    found = (re.fullmatch(r"rank-(\d+)\.jsonl", name) for name in files)
    return sorted(int(match[1]) for match in found if match)


def names(folder: RunFolder, rank: int = 0, *, automatic: bool = False) -> list[str]:
    """Return the names of a rank's metrics, sorted."""
    columns = RankColumns.of(folder, rank)
    return sorted(
        name for name, each in columns.index.metrics.items() if each.automatic == automatic
    )


def series(folder: RunFolder, name: str, rank: int = 0) -> tuple[Any, Any, Any]:
    """Return one metric of a rank: arrays of steps (int64), times in seconds since 1970 and values
    (both float64).

    If a later attempt of the run repeats steps, its values replace the earlier ones. The arrays are
    empty for an unknown metric.
    """
    return RankColumns.of(folder, rank).series(name)


def last_values(folder: RunFolder, rank: int = 0, *, automatic: bool = False) -> dict[str, float]:
    """Return the last value of each metric of a rank."""
    found = RankColumns.of(folder, rank).index.metrics
    return {name: each.last for name, each in found.items() if each.automatic == automatic}


def logged(folder: RunFolder, kind: str, rank: int = 0) -> list[dict[str, Any]]:
    """Return the records of a ``kind``, oldest first.

    ``kind``: ``params``, ``artifact``, ``table``, ``finding`` or ``process``.
    """
    return [each for each in RankColumns.of(folder, rank).others() if each.get("kind") == kind]


def params(folder: RunFolder, rank: int = 0) -> dict[str, Any]:
    """Return the last value of each recorded parameter of a rank."""
    found: dict[str, Any] = {}
    for record in logged(folder, PARAMETERS, rank):
        found.update(record["values"])
    return found


def tables(folder: RunFolder, rank: int = 0) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table of a rank as dicts."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in logged(folder, "table", rank):
        rows = found.setdefault(record["name"], [])
        rows += [dict(zip(record["columns"], row, strict=False)) for row in record["rows"]]
    return found
