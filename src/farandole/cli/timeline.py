"""``farandole timeline merge``: merges the timelines of several ranks."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.cli.parsing import Parser, one_of, say
from farandole.errors import counted

EXAMPLE = "farandole timeline merge trace.json trace.json.rank1 -o merged.json"


def parser() -> Parser:
    found = Parser(
        prog="farandole timeline",
        description="Merge the timelines of several ranks.",
        example=EXAMPLE,
    )
    found.add_argument(
        "action",
        type=one_of(("merge",)),
        choices=("merge",),
        help="merge: combine several files into one, for chrome://tracing",
    )
    found.add_argument(
        "files", nargs="+", metavar="FILE", help="timelines of the ranks: FILE, FILE.rank1, ..."
    )
    found.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="file for the merged timeline"
    )
    return found


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    from farandole.core.observe import timeline

    merged = timeline.merge([timeline.read(path) for path in options.files])
    timeline.write(options.output, merged)
    return say(f"{counted(len(options.files), 'timeline')}, {len(merged)} events: {options.output}")
