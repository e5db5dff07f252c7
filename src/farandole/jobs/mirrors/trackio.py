"""The mirror ``trackio``: a run in the database of a Trackio project. Does not need Trackio.

The project is the experiment, and its database is ``$TRACKIO_DIR/<project>.db``. The names of
tables and columns are those used by Trackio 0.43 and later.
"""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import groupby
from typing import Any, ClassVar

from farandole.job.runs.folder import RunFolder
from farandole.job.runs.states import RunState
from farandole.jobs.mirrors.contract import Point

_TABLES = """
create table if not exists metrics (
    id integer primary key autoincrement, run_id text not null, timestamp text not null,
    run_name text not null, step integer not null, metrics text not null, log_id text, space_id text
);
create unique index if not exists idx_metrics_log_id on metrics(log_id) where log_id is not null;
create index if not exists idx_metrics_run_step on metrics(run_id, step);
create table if not exists configs (
    id integer primary key autoincrement, run_id text not null, run_name text not null,
    config text not null, created_at text not null, unique(run_id)
);
"""


class TrackioMirror:
    """The rows of one run. A retry after a failure writes no row twice."""

    name: ClassVar[str] = "trackio"

    def __init__(self, folder: RunFolder, state: Mapping[str, Any]) -> None:
        spec = folder.spec()
        self._run_id = folder.run_id
        self._run_name = spec.name or folder.run_id
        self._rows = int(state.get("rows", 0))
        self._config: dict[str, Any] = dict(state.get("config", {}))
        place = trackio_folder()
        os.makedirs(place, exist_ok=True)
        path = os.path.join(place, f"{project_file(spec.experiment)}.db")
        self._database = sqlite3.connect(path, timeout=30.0)
        self._database.execute("pragma journal_mode=wal")
        with self._database:
            self._database.executescript(_TABLES)
        config = {
            "_Username": folder.submitted()["user"],
            "_Created": iso(folder.submitted()["time"]),
        }
        self.params({**config, **spec.parameters})

    def state(self) -> Mapping[str, Any]:
        return {"rows": self._rows, "config": self._config}

    def points(self, points: Sequence[Point]) -> None:
        rows, number = [], self._rows
        for (step, time), group in groupby(points, key=lambda each: (each.step, each.time)):
            metrics = json.dumps({each.name: _json(each.value) for each in group})
            log_id = f"{self._run_id}/{number}"
            rows.append((self._run_id, iso(time), self._run_name, step, metrics, log_id))
            number += 1
        with self._database:
            self._database.executemany(
                "insert or ignore into metrics (run_id, timestamp, run_name, step, metrics, log_id)"
                " values (?, ?, ?, ?, ?, ?)",
                rows,
            )
        self._rows = number

    def params(self, values: Mapping[str, Any]) -> None:
        self._config.update(values)
        row = (self._run_id, self._run_name, json.dumps(self._config), self._config["_Created"])
        with self._database:
            self._database.execute(
                "insert or replace into configs (run_id, run_name, config, created_at)"
                " values (?, ?, ?, ?)",
                row,
            )

    def end(self, state: RunState) -> None:
        self._database.close()


def trackio_folder() -> str:
    """Return the folder of Trackio's databases."""
    cache = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return os.environ.get("TRACKIO_DIR") or os.path.expanduser(os.path.join(cache, "trackio"))


def project_file(project: str) -> str:
    """Return the name of a project's database file without its extension."""
    return re.sub(r"[^A-Za-z0-9_-]", "", project) or "default"


def iso(seconds: float) -> str:
    """Return a time in Trackio's format."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


def _json(value: float) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
