"""The parts of a report, in any format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Line(NamedTuple):
    """A curve of a chart: its ``label``, and arrays of x, y and, if reduced, the extremes of y."""

    label: str
    x: Any
    y: Any
    low: Any
    high: Any


class Chart(NamedTuple):
    """A metric over steps."""

    title: str
    lines: Sequence[Line]


class Charts(NamedTuple):
    """Charts next to each other."""

    charts: Sequence[Chart]


class Pairs(NamedTuple):
    """Names with values."""

    pairs: Sequence[tuple[str, str]]


class Table(NamedTuple):
    """A table of text; the first row is the header."""

    rows: Sequence[Sequence[str]]


class Texts(NamedTuple):
    """Paragraphs; ``warning``: whether they are highlighted."""

    paragraphs: Sequence[str]
    warning: bool = False


class Output(NamedTuple):
    """Text printed by a program."""

    text: str


class Picture(NamedTuple):
    """An image file: its name, media type and content."""

    name: str
    type: str
    data: bytes


class Pictures(NamedTuple):
    """Images next to each other."""

    pictures: Sequence[Picture]


Block = Charts | Pairs | Table | Texts | Output | Pictures


class Section(NamedTuple):
    """A titled part of a report; ``level``: 1, or 2 for a part below a section of level 1."""

    title: str
    blocks: Sequence[Block]
    level: int = 1


class Document(NamedTuple):
    """A report."""

    title: str
    sections: Sequence[Section]
