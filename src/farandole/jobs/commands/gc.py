"""``farandole gc``: delete old runs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence

from farandole.cli.parsing import Parser, one_of, say
from farandole.errors import SettingsError, counted
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import FINAL, RunState
from farandole.jobs.column_cache import forget
from farandole.jobs.commands.output import print_json
from farandole.jobs.commands.submit import duration
from farandole.jobs.details import readable_size
from farandole.jobs.environments.build import remove_unused
from farandole.jobs.inputs.cache import InputCache
from farandole.jobs.references import listed
from farandole.jobs.snapshot.store import ContentStore
from farandole.jobs.supervisor.index import IndexedRun

_FINAL_NAMES = tuple(sorted(state.value for state in FINAL))


def parser() -> Parser:
    made = Parser(
        prog="farandole gc",
        example="farandole gc --older-than 30d --keep 10 --state failed",
        description="Delete the folders of runs that have ended. Active runs are kept.",
    )
    made.add_argument(
        "--older-than",
        metavar="TIME",
        type=duration,
        help="age of the runs to delete, such as 12h or 30d",
    )
    made.add_argument("--keep", metavar="N", type=int, help="keep the newest N of each experiment")
    made.add_argument("--experiment", metavar="NAME", help="only runs of this experiment")
    made.add_argument(
        "--state",
        type=one_of(_FINAL_NAMES),
        choices=_FINAL_NAMES,
        metavar="|".join(_FINAL_NAMES),
        help="only runs that ended in this state",
    )
    made.add_argument(
        "--caches",
        action="store_true",
        help="also delete fetched inputs and built environments that no run is using",
    )
    made.add_argument("--dry-run", action="store_true", help="only list the runs")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    chosen_runs = options.older_than is not None or options.keep is not None
    if not chosen_runs and not options.caches:
        raise SettingsError("specify the runs to delete: --older-than 30d, --keep 10, or both")
    home = RunsHome()
    rows = chosen(
        listed(home) if chosen_runs else [],
        now=time.time(),
        older_than=options.older_than,
        keep=options.keep,
        experiment=options.experiment,
        state=options.state,
    )
    freed = 0
    for row in rows:
        freed += folder_size(row.path)
        if not options.json:
            say(f"{row.run_id}  {row.state.value}")
        if not options.dry_run:
            forget(RunFolder(row.path))
            shutil.rmtree(row.path, ignore_errors=True)
    if not options.dry_run:
        ContentStore(home).collect()
        if options.caches:
            freed += InputCache(home).collect() + remove_unused(home)
    if options.json:
        runs = [{"run_id": row.run_id, "state": row.state.value} for row in rows]
        return print_json({"runs": runs, "bytes": freed, "deleted": not options.dry_run})
    verb = "would be deleted" if options.dry_run else "deleted"
    return say(f"{counted(len(rows), 'run')} {verb}, {readable_size(freed)}")


def chosen(
    rows: Sequence[IndexedRun],
    *,
    now: float,
    older_than: float | None = None,
    keep: int | None = None,
    experiment: str | None = None,
    state: str | None = None,
) -> list[IndexedRun]:
    """Return the rows of the runs to delete. ``rows`` are sorted, newest first."""
    seen: dict[str, int] = {}
    found = []
    for row in rows:
        seen[row.experiment] = seen.get(row.experiment, 0) + 1
        if row.state not in FINAL or (experiment and row.experiment != experiment):
            continue
        if state and row.state is not RunState(state):
            continue
        if keep is not None and seen[row.experiment] <= keep:
            continue
        if older_than is not None and now - (row.ended or row.submitted) < older_than:
            continue
        found.append(row)
    return found


def folder_size(path: str) -> int:
    """Return the total size in bytes of all files below a folder."""
    return sum(
        os.lstat(os.path.join(where, name)).st_size
        for where, _, names in os.walk(path)
        for name in names
    )
