"""The text of a comparison, for terminals and notebooks."""

from __future__ import annotations

import textwrap

from farandole.jobs.commands.output import columns
from farandole.jobs.comparison.equal_value import MAXIMIZE
from farandole.jobs.comparison.result import ComparedRuns
from farandole.jobs.details import readable_duration, readable_size

_WIDEST = 60
_WIDTH = 100  # columns of a line
_DIFF_LINES = 40  # maximum per file


def described(found: ComparedRuns, *, diff: bool = False) -> str:
    """Return a comparison as text: a table, and the reasons why the runs are not comparable.

    ``diff``: whether to add the changes in source files.
    """
    names = [each.run_id for each in found.measures]
    table: list[list[str]] = [["", *names], *measure_rows(found)]
    known = {row[0] for row in table}
    table += [
        [name, *map(_cell, values)]
        for name, values in found.differences.items()
        if name not in known and name not in ("seconds", "rank-hours")
    ]
    table += [
        [f"package {name}", *map(_cell, values)]
        for name, values in found.environment.items()
        if f"versions.{name}" not in found.differences
    ]
    table += [[f"source {each['path']}", *map(_cell, each["runs"])] for each in found.source]
    same = f"{' and '.join(names)} do not differ" if len(table) == 1 else columns(table)
    parts = [same, _unfair(found), _diffs(found) if diff else ""]
    return "\n\n".join(part for part in parts if part)


def measure_rows(found: ComparedRuns) -> list[list[str]]:
    """Return a row for each measure that at least one run has: its name, then a text per run."""
    runs = found.measures
    rows = [
        ["duration", *(readable_duration(each.seconds) for each in runs)],
        ["rank-hours", *(_number(each.rank_hours, ".4f") for each in runs)],
        ["samples", *(_number(each.samples, ",.0f") for each in runs)],
        ["samples per model", *(_number(each.samples_per_model, ",.0f") for each in runs)],
        ["epochs", *(_number(each.epochs, "g") for each in runs)],
        ["steps", *(_number(each.steps, ",.0f") for each in runs)],
        ["samples per step and rank", *(_number(each.batch, "g") for each in runs)],
        ["learning rate", *(_number(each.learning_rate, "g") for each in runs)],
        [
            "exchanged by rank 0",
            *(
                "" if each.exchange_bytes is None else readable_size(int(each.exchange_bytes))
                for each in runs
            ),
        ],
    ]
    equal = found.equal
    if equal is not None:
        to = f"{equal.metric} {'>=' if equal.goal == MAXIMIZE else '<='} {equal.value:.4g}"
        rows += [
            [f"time to {to}", *(readable_duration(each) for each in equal.seconds)],
            [f"step at {to}", *(str(each) for each in equal.steps)],
            [f"samples to {to}", *(_number(each, ",.0f") for each in equal.samples)],
        ]
    return [row for row in rows if any(row[1:])]


def _unfair(found: ComparedRuns) -> str:
    """Return the reasons why the runs are not comparable, as paragraphs."""
    if not found.unfair:
        return ""
    paragraphs = [
        textwrap.fill(
            f"- {each.seen} {each.why} {each.cure}",
            _WIDTH,
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        for each in found.unfair
    ]
    return "\n".join(["These runs are not comparable:", *paragraphs])


def _diffs(found: ComparedRuns) -> str:
    lines: list[str] = []
    for each in found.source:
        shown = each["diff"][:_DIFF_LINES]
        lines += [*shown, *(["..."] if each["truncated"] or len(shown) < len(each["diff"]) else [])]
    return "\n".join(lines)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _cell(value: object) -> str:
    text = "" if value is None else str(value).split("\n")[0]
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
