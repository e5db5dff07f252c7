"""``farandole compare``: the differences between runs, and whether they are comparable."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.cli.parsing import Parser, say
from farandole.errors import SettingsError
from farandole.job.runs.home import RunsHome
from farandole.jobs.commands.output import print_json
from farandole.jobs.comparison import compare
from farandole.jobs.comparison.equal_value import MAXIMIZE, MINIMIZE
from farandole.jobs.comparison.text import described
from farandole.jobs.references import find_run


def parser() -> Parser:
    made = Parser(
        prog="farandole compare",
        example="farandole compare RUN1 RUN2",
        description="Show what differs between runs: time, samples, time to an equal validation"
        " value, request, source and environment; and why a comparison would be unfair.",
    )
    made.add_argument("run", metavar="RUN", nargs="+", help="two or more ids or names")
    made.add_argument("--metric", metavar="NAME", help="the metric for the time to an equal value")
    made.add_argument(
        "--goal", choices=(MAXIMIZE, MINIMIZE), help="the direction of --metric, if unclear"
    )
    made.add_argument("--diff", action="store_true", help="print the changes of source files")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    if len(options.run) < 2:
        raise SettingsError("compare needs two runs or more: farandole compare RUN1 RUN2")
    home = RunsHome()
    folders = [find_run(home, each) for each in options.run]
    found = compare(folders, metric=options.metric, goal=options.goal)
    if options.json:
        return print_json(found.to_json(curves=False))
    return say(described(found, diff=options.diff))
