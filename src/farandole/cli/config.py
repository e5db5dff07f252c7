"""``farandole config``: lists every user setting."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

from farandole.cli.parsing import Parser, say
from farandole.job.config import Settings
from farandole.job.config.fields import Setting, settings_of


def parser() -> Parser:
    return Parser(
        prog="farandole config",
        example="farandole config | grep timeline",
        description="List every setting: flag, variable, Horovod's variable, default, meaning.",
    )


def main(arguments: Sequence[str]) -> int:
    parser().parse_args(list(arguments))
    shown = settings_of(Settings)
    return say(_paragraphs(shown) if sys.stdout.isatty() else _table(shown))


def _table(shown: Sequence[Setting]) -> str:
    """Return one line per setting, however long, for grep."""
    rows = [("flag", "variable", "default", "unit", "meaning")]
    for setting in shown:
        also = f" ({setting.horovod})" if setting.horovod else ""
        rows.append(
            (
                setting.flag,
                setting.variable + also,
                setting.shown(setting.default),
                setting.unit,
                setting.doc,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]])
        for row in rows
    )


def _paragraphs(shown: Sequence[Setting]) -> str:
    """Return a few lines per setting, wrapped to the terminal."""
    width = shutil.get_terminal_size().columns
    texts = []
    for setting in shown:
        default = f"{setting.shown(setting.default) or 'none'} {setting.unit}".rstrip()
        variables = "\n    ".join(
            [setting.variable, setting.horovod] if setting.horovod else [setting.variable]
        )
        doc = textwrap.fill(
            setting.doc, max(width - 1, 30), initial_indent="    ", subsequent_indent="    "
        )
        texts.append(f"{setting.flag}  (default: {default})\n    {variables}\n{doc}")
    return "\n".join(texts)
