"""Common output of the commands: tables, JSON, and a run's log until its end."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from farandole.cli.parsing import say
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.states import RunState
from farandole.jobs import follow
from farandole.jobs.details import duration, readable_duration


def print_json(data: Any) -> int:
    return say(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table of aligned columns; the first row is the header.

    Line breaks and control characters in names are shown as escapes.
    """
    rows = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def facts_table(facts: Sequence[tuple[str, str]]) -> str:
    """Return names and values as text, one pair per line; omit pairs without a value."""
    shown = [
        (name, "\n".join(map(_printable, value.split("\n")))) for name, value in facts if value
    ]
    width = max((len(name) for name, _ in shown), default=0)
    gap = "\n" + " " * (width + 2)
    return "\n".join(f"{name:<{width}}  {value.replace(chr(10), gap)}" for name, value in shown)


def follow_to_end(folder: RunFolder, rank: int | None = None, tail: int = 0) -> int:
    """Print a run's output until the run ends, then its final state; return its exit status."""
    for text in follow.follow(folder, rank, tail):
        sys.stdout.write(text)
        sys.stdout.flush()
    return report_end(folder)


def report_end(folder: RunFolder) -> int:
    """Report the end of a run on stderr, and return the run's exit status."""
    end = folder.end() or {}
    state = RunState(end["state"])
    took = readable_duration(duration(folder))
    sys.stderr.write(
        f"farandole: run {folder.run_id} is {state.value}{f' after {took}' if took else ''}\n"
    )
    if state is RunState.COMPLETED:
        return 0
    if end["cause"]:
        sys.stderr.write(f"farandole: {end['cause']}\n")
    return end["exit_code"] or 1
