"""Lookup of runs by id, by the unique prefix of an id, by name, or as the last run."""

from __future__ import annotations

from farandole.errors import SettingsError, did_you_mean
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.jobs.supervisor.index import Index, IndexedRun

LAST = "last"


def find_run(home: RunsHome, reference: str) -> RunFolder:
    """Return the folder of a run.

    ``reference``: a run id, a unique prefix of an id, or the path of a run's folder. A display name
    or an experiment refers to its newest run, and ``last`` to the newest of all runs. Raises
    SettingsError if no run matches, or several do.
    """
    exact = home.find(reference)
    if exact is not None:
        return exact
    rows = listed(home)
    if not rows:
        raise SettingsError("there are no runs yet; farandole submit creates one")
    if reference == LAST:
        return RunFolder(rows[0].path)
    beginning = [row for row in rows if row.run_id.startswith(reference)]
    for candidates in (
        [row for row in rows if row.name == reference][:1],
        [row for row in rows if row.experiment == reference][:1],
        beginning,
    ):
        if len(candidates) == 1:
            return RunFolder(candidates[0].path)
    if beginning:
        shown = ", ".join(row.run_id for row in beginning[:4])
        raise SettingsError(f"several runs begin with {reference!r}: {shown}; give more letters")
    known = [row.run_id for row in rows] + [row.name for row in rows if row.name]
    raise SettingsError(
        f"there is no run {reference!r}{did_you_mean(reference, known)}; farandole runs lists them"
    )


def listed(home: RunsHome, where: str = "", values: tuple[object, ...] = ()) -> list[IndexedRun]:
    """Bring the index up to date and return its rows, newest first."""
    index = Index(home)
    try:
        index.refresh()
        return list(index.runs(where, values))
    finally:
        index.close()


def reindex(folder: RunFolder, home: RunsHome) -> None:
    """Bring the index up to date after a change of an ended run, such as a new tag."""
    index = Index(home)
    try:
        index.update(folder)
    finally:
        index.close()
