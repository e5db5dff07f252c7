"""``farandole config``: every setting that a user may set."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

from farandole.cli.parsing import Parser, say
from farandole.config import Knob, knobs


def parser() -> Parser:
    return Parser(
        prog="farandole config", example="farandole config | grep timeline",
        description="Every setting: flag, variable, Horovod's variable, default, meaning.",
    )  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser().parse_args(list(arguments))
    shown = knobs()
    return say(_paragraphs(shown) if sys.stdout.isatty() else _table(shown))


def _table(shown: Sequence[Knob]) -> str:
    """One line for each setting, however long: for grep."""
    rows = [("flag", "variable", "default", "unit", "meaning")]
    for knob in shown:
        also = f" ({knob.horovod})" if knob.horovod else ""
        rows.append((knob.flag, knob.variable + also, knob.shown(knob.default), knob.unit, knob.doc))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows
    )


def _paragraphs(shown: Sequence[Knob]) -> str:
    """A few lines for each setting, within the terminal."""
    width = shutil.get_terminal_size().columns
    texts = []
    for knob in shown:
        default = f"{knob.shown(knob.default) or 'none'} {knob.unit}".rstrip()
        variables = "\n    ".join([knob.variable, knob.horovod] if knob.horovod else [knob.variable])
        doc = textwrap.fill(knob.doc, max(width - 1, 30), initial_indent="    ", subsequent_indent="    ")
        texts.append(f"{knob.flag}  (default: {default})\n    {variables}\n{doc}")
    return "\n".join(texts)
