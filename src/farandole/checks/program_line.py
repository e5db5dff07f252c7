"""The line of the user's program that a rank runs."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from types import FrameType

from farandole.base.package import is_own_file

_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple(f"{_PATHS[name]}{os.sep}" for name in ("stdlib", "platstdlib"))
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def program_line() -> str:
    """Return ``file:line`` of the user's program, relative to the working directory where possible;
    empty if none is found.

    A framework may call from its own thread, which has no frame of the program. Then return the
    line of the main thread, which waits for that thread.
    """
    here = _first(sys._getframe(1))
    if here or threading.current_thread() is threading.main_thread():
        return here
    ident = threading.main_thread().ident
    return _first(sys._current_frames().get(ident)) if ident is not None else ""


def _first(frame: FrameType | None) -> str:
    while frame is not None:
        file = frame.f_code.co_filename
        if _is_of_program(file):
            inside = os.path.relpath(file)
            return f"{file if inside.startswith(os.pardir) else inside}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _is_of_program(file: str) -> bool:
    library = file.startswith(_LIBRARIES) or any(folder in file for folder in _PACKAGES)
    return not library and not is_own_file(file) and os.path.isfile(file)
