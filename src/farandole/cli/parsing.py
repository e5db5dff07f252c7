"""Shared parts of the commands: output, and a parser that raises SettingsError."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from farandole.errors import SettingsError, did_you_mean
from farandole.job.launch.arguments import check_values


class Parser(argparse.ArgumentParser):
    """A parser that raises SettingsError instead of exiting. ``example`` is shown below the
    options, unwrapped.
    """

    def __init__(self, *, example: str = "", **options: Any) -> None:
        super().__init__(
            **options,
            allow_abbrev=False,
            epilog=f"example: {example}" if example else None,
            formatter_class=_Formatter,
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            near = did_you_mean(rest[0], self._option_string_actions)
            self.error(f"unknown option {rest[0]!r}{near}")
        check_values(self, options)
        return options

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see {self.prog} --help")


class _Formatter(argparse.HelpFormatter):
    """Wraps the options to the terminal width, but not the text to copy."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example:") else super()._fill_text(text, width, indent)


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """Return the ``type`` of an argument with a fixed set of values."""

    def check(text: str) -> str:
        if text not in choices:
            near = did_you_mean(text, choices)
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a valid choice; choose one of {', '.join(choices)}{near}"
            )
        return text

    return check


def say(text: str) -> int:
    """Print the text and return the status 0."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        mute()
        raise SettingsError(f"the output cannot be written: {error}") from error
    return 0


def mute() -> None:
    """Redirect stdout to /dev/null, so that Python's flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
