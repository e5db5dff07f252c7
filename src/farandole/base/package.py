"""The folder of this package, whether a source file belongs to it, and the version of Python."""

from __future__ import annotations

import os
import sys
from functools import cache

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Bytecode, and therefore a pickled function, is specific to a minor version of Python.
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
PARENT = os.path.dirname(FOLDER)
_NAME = os.sep + os.path.basename(FOLDER) + os.sep


@cache
def is_own_file(file: str) -> bool:
    """Return whether ``file``, named in a traceback, is a module of this package.

    The traceback may come from another host with another installation folder, so the path after the
    package's name must be a module here.
    """
    if file.startswith(FOLDER + os.sep):
        return True
    _, found, inside = file.rpartition(_NAME)
    return bool(found) and os.path.isfile(os.path.join(FOLDER, inside))
