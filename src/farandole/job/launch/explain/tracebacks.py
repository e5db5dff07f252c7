"""Tracebacks of ranks: the line in the user's program, and source lines that only this machine
has.
"""

from __future__ import annotations

import re

from farandole.base.package import is_own_file
from farandole.errors import SHUT_DOWN
from farandole.job.launch.explain.events import RankState

# The patterns are strings, so that a successful job compiles none of them.
_FRAME = (
    r'(?m)^  File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<where>.+))?\n(?:   '
    r" (?P<code>.+)\n)?"
)
_INSTALLED = r"/(?:site|dist)-packages/|/lib/python3|^<frozen "
_BARE_FRAME = r'(?m)^  File "(?P<file>.+)", line (?P<line>\d+).*\n(?!    )'


def program_line(rank: RankState) -> str:
    """Return the last line of the user's program in a rank's error; empty if unknown."""
    trace = rank.outcome.traceback if rank.outcome is not None else ""
    frames = [frame for frame in re.finditer(_FRAME, trace) if not is_own_file(frame["file"])]
    if not frames:
        return ""
    own = [frame for frame in frames if not re.search(_INSTALLED, frame["file"])]
    frame = (own or frames)[-1]
    return f"{frame['file']}, line {frame['line']}" + (
        f": {frame['code']}" if frame["code"] else ""
    )


def own_words(victim: RankState) -> str:
    """Return a victim's line in the user's program, and its error without the standard text.

    The end of its traceback is deep inside this package.
    """
    assert victim.outcome is not None
    message = victim.outcome.message.partition(SHUT_DOWN)[2].strip() or victim.outcome.message
    message = message.partition("\n\nAt:\n")[0]  # drop pybind11's copy of the stack
    if message.startswith("(") and message.endswith(")"):
        message = message[1:-1]
    place = program_line(victim)
    return (
        f"Rank {victim.rank} was at {place}\n{message}"
        if place
        else f"Rank {victim.rank} reported: {message}"
    )


def with_lines(trace: str) -> str:
    """Add source lines that only this machine has to a rank's traceback: lines of notebook
    cells, and of files missing on the rank's host.
    """

    import linecache  # imported here because it loads Python's tokenizer

    def shown(frame: re.Match[str]) -> str:
        line = linecache.getline(frame["file"], int(frame["line"])).strip()
        return frame[0] + (f"    {line}\n" if line else "")

    return re.sub(_BARE_FRAME, shown, trace)
