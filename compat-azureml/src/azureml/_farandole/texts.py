"""Texts for users: the output of the SDK on stdout, notices on stderr."""

from __future__ import annotations

import sys

_given: set[str] = set()


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def warn(text: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def notice(text: str) -> None:
    """Print a notice on stderr, once per process."""
    if text not in _given:
        _given.add(text)
        warn(f"farandole: {text}")
