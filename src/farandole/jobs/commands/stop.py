"""``farandole stop``: end runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from farandole.cli.parsing import Parser, say
from farandole.errors import SettingsError
from farandole.job.runs.folder import CANCEL, RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import FINAL
from farandole.jobs.commands.output import print_json
from farandole.jobs.follow import wait
from farandole.jobs.references import find_run, listed
from farandole.jobs.supervisor.wake import ensure_running


def parser() -> Parser:
    made = Parser(
        prog="farandole stop",
        example="farandole stop last",
        description="End runs: waiting runs immediately, running runs within their grace period.",
    )
    made.add_argument("run", metavar="RUN", nargs="*", help="id, name or last")
    made.add_argument("--all", action="store_true", help="all runs that have not ended")
    made.add_argument("--no-wait", action="store_true", help="do not wait for the end")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    if bool(options.run) == options.all:
        raise SettingsError("name the runs to stop, or use --all; see farandole stop --help")
    home = RunsHome()
    folders = _all_active(home) if options.all else [find_run(home, each) for each in options.run]
    active = [folder for folder in folders if folder.end() is None]
    for folder in active:
        folder.request(CANCEL)
    if active:
        ensure_running(home)
    for folder in folders:
        if folder in active and not options.no_wait:
            wait(folder)
        if not options.json:
            say(f"{folder.run_id}  {folder.state().value}")
    if options.json:
        return print_json(
            [{"run_id": each.run_id, "state": each.state().value} for each in folders]
        )
    if not folders:
        sys.stderr.write("farandole: all runs have ended\n")
    return 0


def _all_active(home: RunsHome) -> list[RunFolder]:
    marks = ", ".join("?" * len(FINAL))
    rows = listed(home, f"state not in ({marks})", tuple(state.value for state in FINAL))
    return [RunFolder(row.path) for row in rows]
