"""An index of all runs in SQLite, which lists thousands of runs quickly.

All its data come from the runs' folders, so any process may update the index, and a damaged index
is rebuilt.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from farandole.errors import RunError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import FINAL, RunState
from farandole.jobs.supervisor.place import state_folder

_VERSION = 2
_STATES = {state.value: state for state in RunState}
_TABLE = """
create table if not exists runs (
    run_id text primary key, experiment text, name text, number integer, state text, target text,
    ranks integer, nodes integer, submitted real, started real, ended real, cause text, tags text,
    parent text, command text, path text
)
"""


class IndexedRun(NamedTuple):
    """A row of the index. Times are in seconds since 1970; None before the event."""

    run_id: str
    experiment: str
    name: str
    number: int
    state: RunState
    target: str
    ranks: int
    nodes: int
    submitted: float
    started: float | None
    ended: float | None
    cause: str
    tags: dict[str, str]
    parent: str
    command: str
    path: str


_TAGS = IndexedRun._fields.index("tags")


class Index:
    """The index of one home's runs. Not thread-safe."""

    def __init__(self, home: RunsHome) -> None:
        self._home = home
        self._path = os.path.join(state_folder(home), "index.db")
        self._database = self._opened()

    def _opened(self) -> sqlite3.Connection:
        """Open the database; rebuild it if it is damaged or has another version."""
        for _ in range(2):
            database = sqlite3.connect(self._path, timeout=30.0, isolation_level=None)
            try:
                os.chmod(self._path, 0o600)
                database.execute("pragma journal_mode=wal")
                database.execute("pragma synchronous=normal")
                version = database.execute("pragma user_version").fetchone()[0]
                if version in (0, _VERSION):
                    database.execute(_TABLE)
                    database.execute(f"pragma user_version={_VERSION}")
                    database.execute("select run_id, path from runs limit 1").fetchone()
                    return database
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
                    raise
            database.close()
            self._discard()
        raise RunError(f"the index {self._path} cannot be created; is its disk full?")

    def _discard(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path + suffix)

    def update(self, folder: RunFolder) -> None:
        """Update one run's row. Raises RunError if its folder is damaged."""
        if folder.exists():
            self._write([_row(folder)])
        else:
            self._remove([folder.run_id])

    def refresh(self) -> None:
        """Update all rows: add new runs, update active ones, remove deleted ones.

        Damaged folders are omitted.
        """
        ended = self._ended()
        present: set[str] = set()
        rows = []
        for parent, names in self._home.folders():
            present.update(names)
            for run_id in names.difference(ended.get(parent, ())):
                folder = RunFolder(os.path.join(parent, run_id))
                if folder.exists():
                    with contextlib.suppress(RunError, OSError, KeyError, TypeError, ValueError):
                        rows.append(_row(folder))
        self._write(rows)
        every = {row[0] for row in self._database.execute("select run_id from runs")}
        self._remove(every - present)

    def _ended(self) -> dict[str, set[str]]:
        """Return the ids of all ended runs, by the folder of their experiment."""
        marks = ", ".join("?" * len(FINAL))
        found: dict[str, set[str]] = {}
        for run_id, path in self._database.execute(
            f"select run_id, path from runs where state in ({marks})",
            tuple(state.value for state in FINAL),
        ):
            found.setdefault(path[: -len(run_id) - 1], set()).add(run_id)
        return found

    def runs(self, where: str = "", values: tuple[Any, ...] = ()) -> Iterator[IndexedRun]:
        """Yield rows, newest first; ``where`` is an SQL condition with ``?`` for values."""
        condition = f"where {where} " if where else ""
        columns = ", ".join(IndexedRun._fields)
        query = f"select {columns} from runs {condition}order by number desc"
        for row in self._database.execute(query, values):
            tags = json.loads(row[_TAGS]) if row[_TAGS] != "{}" else {}
            state = _STATES[row[4]]
            yield IndexedRun._make((*row[:4], state, *row[5:_TAGS], tags, *row[_TAGS + 1 :]))

    def version(self) -> int:
        """Return a number that differs after another process or connection has changed a row."""
        return int(self._database.execute("pragma data_version").fetchone()[0])

    def close(self) -> None:
        self._database.close()

    def _write(self, rows: list[tuple[Any, ...]]) -> None:
        if not rows:
            return
        marks = ", ".join("?" * len(IndexedRun._fields))
        columns = ", ".join(IndexedRun._fields)
        self._database.execute("begin immediate")
        try:
            self._database.executemany(
                f"insert or replace into runs ({columns}) values ({marks})", rows
            )
            self._database.execute("commit")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # a full disk ended the transaction
                self._database.execute("rollback")
            raise

    def _remove(self, run_ids: Any) -> None:
        self._database.executemany(
            "delete from runs where run_id = ?", [(run_id,) for run_id in run_ids]
        )


def _row(folder: RunFolder) -> tuple[Any, ...]:
    spec, submitted, end = folder.spec(), folder.submitted(), folder.end()
    state, started = RunState.QUEUED, None
    ranks, nodes = spec.resources.ranks, spec.resources.nodes
    for event in folder.events():
        if event.get("event") == "state":
            state = RunState(event["state"])
            started = event["time"] if state is RunState.RUNNING else started
        elif event.get("event") == "membership":
            ranks = int(event["ranks"])
            nodes = -(-ranks // spec.resources.ranks_per_node)
    if end is not None:
        state = RunState(end["state"])
    return (
        folder.run_id,
        spec.experiment,
        spec.name,
        submitted["number"],
        state.value,
        spec.target,
        ranks,
        nodes,
        submitted["time"],
        started,
        end["time"] if end else None,
        end["cause"] if end else "",
        json.dumps(folder.tags()),
        spec.parent,
        " ".join(spec.command),
        folder.path,
    )
