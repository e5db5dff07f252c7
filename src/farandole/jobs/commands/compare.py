"""``farandole compare``: the differences between runs."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.cli.parsing import Parser, say
from farandole.errors import SettingsError
from farandole.job.runs.home import RunsHome
from farandole.jobs.commands.output import columns, print_json
from farandole.jobs.comparison import compare
from farandole.jobs.references import find_run

_WIDEST = 60


def parser() -> Parser:
    made = Parser(
        prog="farandole compare",
        example="farandole compare RUN1 RUN2",
        description="Show what differs between runs: request, source, environment, time, metrics.",
    )
    made.add_argument("run", metavar="RUN", nargs="+", help="two or more ids or names")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    if len(options.run) < 2:
        raise SettingsError("compare needs two runs or more: farandole compare RUN1 RUN2")
    home = RunsHome()
    folders = [find_run(home, each) for each in options.run]
    rows = compare(folders)
    names = [folder.run_id for folder in folders]
    if options.json:
        return print_json({"runs": names, "differences": rows})
    if not rows:
        return say(f"{' and '.join(names)} do not differ")
    table = [["", *names]]
    table += [[name, *map(_cell, values)] for name, values in rows.items()]
    return say(columns(table))


def _cell(value: object) -> str:
    text = "" if value is None else str(value).split("\n")[0]
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
