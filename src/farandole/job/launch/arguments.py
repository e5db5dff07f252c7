"""Argument checks that argparse lacks, for all commands."""

from __future__ import annotations

import argparse


def check_values(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Call ``parser.error`` for ``--flag=--``.

    Python before 3.13 parses it as a flag without a value and returns an empty list.
    """
    for action in parser._actions:
        value = getattr(options, action.dest, None)
        empty = [] in (value or []) if isinstance(action, argparse._AppendAction) else value == []
        if action.option_strings and action.nargs is None and empty:
            parser.error(f"argument {'/'.join(action.option_strings)}: expected one argument")
