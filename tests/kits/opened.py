"""The open files of this process, each by what it is: what is closed meanwhile hides nothing, and
is no fault.
"""

from __future__ import annotations

import contextlib
import os


def opened() -> set[str]:
    """The number of each, and the number that the kernel gave its socket or pipe, or its path."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder that was read is one of them
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return found
