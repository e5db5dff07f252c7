"""A report as Markdown, for tickets, which show neither SVG nor embedded images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from farandole.dashboard.report.document import (
    Block,
    Chart,
    Charts,
    Document,
    Output,
    Pairs,
    Pictures,
    Section,
    Table,
    Texts,
)
from farandole.dashboard.report.svg import short

_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 24  # characters of a curve
# An underscore within a word has no meaning in Markdown.
_SPECIAL = re.compile(r"([\\`*{}\[\]<>#|~!$@&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def markdown(document: Document) -> str:
    """Return the report as Markdown."""
    parts = [f"# {escaped(document.title)}", *map(_section, document.sections)]
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Return text as one line, with Markdown's special characters escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _section(section: Section) -> str:
    title = f"{'#' * (section.level + 1)} {escaped(section.title)}"
    return "\n\n".join([title, *map(_block, section.blocks)])


def _block(block: Block) -> str:
    if isinstance(block, Pairs):
        return _table([["", ""], *block.pairs])
    if isinstance(block, Table):
        return _table(block.rows)
    if isinstance(block, Texts):
        mark = "> " if block.warning else ""
        return "\n\n".join(f"{mark}{escaped(text)}" for text in block.paragraphs)
    if isinstance(block, Output):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
        return f"{fence}text\n{block.text.rstrip()}\n{fence}"
    if isinstance(block, Charts):
        return _curves(block.charts)
    assert isinstance(block, Pictures)
    return "\n".join(f"- {escaped(each.name)}" for each in block.pictures)


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(map(escaped, row))} |" for row in rows]
    lines.insert(1, f"|{' --- |' * len(rows[0])}")
    return "\n".join(lines)


def _curves(charts: Sequence[Chart]) -> str:
    """Return a table with the first, smallest, largest and last value of each curve."""
    rows = [["metric", "curve", "first", "smallest", "largest", "last", "last step"]]
    for chart in charts:
        for line in chart.lines:
            name = f"{chart.title}, {line.label}" if line.label else chart.title
            values = np.concatenate([line.y, line.low, line.high]).astype(float)
            finite = values[np.isfinite(values)]
            ends = [short(float(line.y[0])), short(float(line.y[-1]))]
            extremes = [short(finite.min()), short(finite.max())] if len(finite) else ["", ""]
            rows.append([name, bars(line.y), ends[0], *extremes, ends[1], str(int(line.x[-1]))])
    return _table(rows)


def bars(values: Any) -> str:
    """Return a curve as a row of bars."""
    count = min(_COLUMNS, len(values))
    chosen = values[np.linspace(0, len(values) - 1, count).astype(int)].astype(float)
    finite = chosen[np.isfinite(chosen)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    found = ""
    for value in chosen:
        if not np.isfinite(value):
            found += "!"
        else:
            share = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.0
            found += _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))]
    return found
