"""``farandole runs``: the list of runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from farandole.cli.parsing import Parser, one_of, say
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import FINAL, RunState
from farandole.jobs.commands.output import columns, print_json
from farandole.jobs.details import readable_duration, readable_time
from farandole.jobs.references import listed
from farandole.jobs.supervisor.index import IndexedRun

STATES = tuple(state.value for state in RunState)


def parser() -> Parser:
    made = Parser(
        prog="farandole runs",
        example="farandole runs --experiment xray --state failed",
        description="List runs, newest first.",
    )
    made.add_argument("--experiment", metavar="NAME", help="only runs of this experiment")
    made.add_argument(
        "--state", type=one_of(STATES), choices=STATES, metavar="STATE", help="only this state"
    )
    made.add_argument("--active", action="store_true", help="only runs that have not ended")
    made.add_argument("--tag", metavar="NAME[=TEXT]", help="only runs with this tag")
    made.add_argument(
        "-n", "--limit", metavar="N", type=int, default=20, help="maximum number of runs (20)"
    )
    made.add_argument("--all", action="store_true", help="all runs")
    made.add_argument("--ids", action="store_true", help="only the ids, one per line")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    rows = _selected(options, RunsHome())
    shown = rows if options.all or options.ids else rows[: options.limit]
    if options.json:
        return print_json([row_facts(row) for row in shown])
    if options.ids:
        return say("\n".join(row.run_id for row in shown)) if shown else 0
    if not rows:
        return say("no runs; farandole submit creates one")
    say(columns([_HEADER, *map(_cells, shown)]))
    if len(shown) < len(rows):
        say(f"({len(rows) - len(shown)} older runs are not shown: --all, or -n {len(rows)})")
    return 0


def _selected(options: Any, home: RunsHome) -> list[IndexedRun]:
    conditions, values = [], []
    for name in ("experiment", "state"):
        if getattr(options, name):
            conditions.append(f"{name} = ?")
            values.append(getattr(options, name))
    if options.active:
        conditions.append(f"state not in ({', '.join('?' * len(FINAL))})")
        values += [state.value for state in FINAL]
    rows = listed(home, " and ".join(conditions), tuple(values))
    if options.tag:
        name, equals, text = options.tag.partition("=")
        rows = [row for row in rows if name in row.tags and (not equals or row.tags[name] == text)]
    return rows


_HEADER = ("run", "state", "ranks", "target", "submitted", "duration", "name")


def _cells(row: IndexedRun) -> tuple[str, ...]:
    return (
        row.run_id,
        row.state.value,
        str(row.ranks),
        row.target,
        readable_time(row.submitted),
        readable_duration(seconds_of(row)),
        row.name,
    )


def seconds_of(row: IndexedRun) -> float | None:
    """Return the seconds from a run's start to its end, or to now; None before the start."""
    if row.started is None:
        return None
    return max(0.0, (row.ended or time.time()) - row.started)


def row_facts(row: IndexedRun) -> dict[str, Any]:
    """Return a row as plain data."""
    return {**row._asdict(), "state": row.state.value, "seconds": seconds_of(row)}
