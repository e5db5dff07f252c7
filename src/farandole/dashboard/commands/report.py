"""``farandole report``: write runs to one file, to attach to a ticket or a paper."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from farandole.cli.parsing import Parser, one_of, say
from farandole.errors import SettingsError
from farandole.job.runs.home import RunsHome
from farandole.jobs.details import readable_size
from farandole.jobs.references import find_run

FORMATS = {"html": ".html", "markdown": ".md"}


def parser() -> Parser:
    made = Parser(
        prog="farandole report",
        example="farandole report last -o run.html",
        description="Write a run to one file: curves, parameters, environment, command, cause,"
        " findings and the end of its log. Several runs are compared.",
    )
    made.add_argument("run", metavar="RUN", nargs="*", help="id, name or last (default: last)")
    made.add_argument(
        "--format",
        type=one_of(tuple(FORMATS)),
        choices=tuple(FORMATS),
        metavar="FORMAT",
        help="html or markdown (default: by the name of FILE, or html)",
    )
    made.add_argument("-o", "--output", metavar="FILE", help="default: RUN.html; - prints it")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    home = RunsHome()
    folders = [find_run(home, each) for each in options.run or ["last"]]
    # imported here because importing numpy takes longer than the rest of a command
    from farandole.dashboard.report.as_html import html
    from farandole.dashboard.report.as_markdown import markdown
    from farandole.dashboard.report.content import report

    form = options.format or _format_of(options.output or "")
    document = report(folders)
    text = html(document) if form == "html" else markdown(document)
    if options.output == "-":
        sys.stdout.write(text)
        return 0
    path = options.output or f"{folders[0].run_id}{FORMATS[form]}"
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        raise SettingsError(f"the report {path} cannot be written: {error.strerror}") from None
    return say(f"{path}  {readable_size(os.path.getsize(path))}")


def _format_of(path: str) -> str:
    return "markdown" if os.path.splitext(path)[1].lower() in (".md", ".markdown") else "html"
