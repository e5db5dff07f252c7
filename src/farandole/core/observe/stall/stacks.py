"""The current lines of the user's program."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from functools import cache
from typing import NamedTuple

from farandole.base.package import FOLDER

_OURS = FOLDER + os.sep
_MAX_FRAMES = 30  # frames


class Frame(NamedTuple):
    file: str
    line: int
    function: str
    code: str


def users() -> list[Frame]:
    """Return the user's frames of the main thread, innermost last; library frames if there are no
    others.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return []
    every = [
        Frame(entry.filename, entry.lineno or 0, entry.name, entry.line or "")
        for entry in traceback.extract_stack(frame)
    ]
    return ([entry for entry in every if is_users(entry.file)] or every)[-_MAX_FRAMES:]


def is_users(file: str) -> bool:
    """Return whether a file belongs neither to this package nor to an installed library."""
    return not file.startswith((_OURS, *_libraries(), "<frozen"))


@cache
def _libraries() -> tuple[str, ...]:
    import sysconfig  # imported here: it takes milliseconds at the start of a job

    return tuple(
        {
            sysconfig.get_path(name) + os.sep
            for name in ("stdlib", "platstdlib", "purelib", "platlib")
        }
    )
