"""What the commands share: a parser whose errors are SettingsErrors, and output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from farandole.errors import SettingsError, did_you_mean


class Parser(argparse.ArgumentParser):
    """Raises SettingsError instead of exiting. ``example`` stands below the options, in lines of its own."""

    def __init__(self, *, example: str = "", **options: Any) -> None:
        super().__init__(
            **options, allow_abbrev=False, epilog=f"example: {example}" if example else None,
            formatter_class=_Formatter,
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see {self.prog} --help")


class _Formatter(argparse.HelpFormatter):
    """Wraps the options to the terminal, but leaves what can be copied in one line."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example:") else super()._fill_text(text, width, indent)


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """The ``type`` of an argument with a closed set of values."""

    def check(text: str) -> str:
        if text not in choices:
            near = did_you_mean(text, choices)
            raise argparse.ArgumentTypeError(f"{text!r} is not known; choose one of {', '.join(choices)}{near}")
        return text

    return check


def say(text: str) -> int:
    """Print; the status is 0."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    return 0
