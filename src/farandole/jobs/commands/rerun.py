"""``farandole rerun``: a new run with the command, source and environment of an old one."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence

from farandole.cli.parsing import Parser, say
from farandole.errors import SettingsError
from farandole.job.report import pickling
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.jobs.commands.output import follow_to_end, print_json
from farandole.jobs.details import details
from farandole.jobs.environments import LOCK
from farandole.jobs.references import find_run
from farandole.jobs.submission import Submission, submit


def parser() -> Parser:
    made = Parser(
        prog="farandole rerun",
        example="farandole rerun last -f",
        description="Submit a run again, from its own snapshot, as a new run.",
    )
    made.add_argument("run", metavar="RUN", nargs="?", default="last", help="id, name or folder")
    made.add_argument("--target", metavar="NAME", help="on another target")
    made.add_argument("--json", action="store_true", help="print the new run as JSON")
    made.add_argument(
        "-f", "--follow", action="store_true", help="show the output until the run ends"
    )
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    home = RunsHome()
    folder = rerun(find_run(home, options.run), home, options.target)
    if options.json:
        print_json(details(folder))
    else:
        say(folder.run_id)
    if options.follow:
        return follow_to_end(folder)
    sys.stderr.write(f"farandole: follow it with: farandole logs -f {folder.run_id}\n")
    return 0


def rerun(folder: RunFolder, home: RunsHome, target: str | None = None) -> RunFolder:
    """Submit a run again and return the new run's folder.

    The new run has the source, command, settings and inputs of the old run, but no dependencies.
    """
    spec = folder.spec()
    again = dataclasses.replace(
        spec, target=target or spec.target, after=(), tags={**spec.tags, "rerun_of": folder.run_id}
    )
    call = None
    if not spec.command:
        if not os.path.exists(folder.file("function.pkl")):
            raise SettingsError(
                f"run {folder.run_id} called a function of a program, but its folder has no copy of"
                " the function; run the program again"
            )
        with open(folder.file("function.pkl"), "rb") as file:
            call = pickling.unpack(file.read())
    snapshot = folder.file("snapshot") if os.path.isdir(folder.file("snapshot")) else ""
    # A tracked run (not submitted) has no snapshot, so use the current state of its source.
    source = spec.source if folder.submitted().get("tracked") else ""
    request = Submission(again, source=source, call=call, snapshot=snapshot, data=_lock(folder))
    return submit(request, home)


def _lock(folder: RunFolder) -> dict[str, bytes]:
    """Return the lock file of the environment built for a run, if any."""
    path = folder.file(LOCK)
    if folder.spec().environment.policy != "build" or not os.path.exists(path):
        return {}
    with open(path, "rb") as file:
        return {LOCK: file.read()}
