"""What argparse leaves to check, for every command."""

from __future__ import annotations

import argparse


def check_values(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """``parser.error`` for ``--flag=--``: Python before 3.13 takes it for a flag with no value, and
    gives a list.
    """
    for action in parser._actions:
        value = getattr(options, action.dest, None)
        empty = [] in (value or []) if isinstance(action, argparse._AppendAction) else value == []
        if action.option_strings and action.nargs is None and empty:
            parser.error(f"argument {'/'.join(action.option_strings)}: expected one argument")
