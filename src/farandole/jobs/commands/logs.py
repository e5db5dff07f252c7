"""``farandole logs``: the output of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from farandole.cli.parsing import Parser
from farandole.errors import RunError, SettingsError
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import RunState
from farandole.jobs.commands.output import follow_to_end, report_end
from farandole.jobs.follow import LogReader, log_path
from farandole.jobs.references import find_run


def parser() -> Parser:
    made = Parser(
        prog="farandole logs",
        example="farandole logs -f last --rank 1",
        description="Print the output of a run's ranks; with -f, until the run ends.",
    )
    made.add_argument("run", metavar="RUN", nargs="?", default="last", help="id, name or last")
    made.add_argument("--rank", metavar="N", type=int, help="only this rank, without prefixes")
    made.add_argument(
        "-f", "--follow", action="store_true", help="follow the output until the run ends"
    )
    made.add_argument("-n", "--tail", metavar="N", type=int, default=0, help="the last N lines")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    folder = find_run(RunsHome(), options.run)
    try:
        path = log_path(folder, options.rank)
    except RunError as error:
        raise SettingsError(str(error)) from None
    if options.follow:
        return follow_to_end(folder, options.rank, options.tail)
    reader = LogReader(path, options.tail)
    while text := reader.read():
        sys.stdout.write(text)
    sys.stdout.flush()
    if (end := folder.end()) and end["state"] == RunState.FAILED.value:
        # A rank's error is in its own log and in the run's cause, but not in the log of all ranks.
        report_end(folder)
    return 0
