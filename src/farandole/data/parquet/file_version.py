"""What tells that a file has changed since somebody looked at it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# of fsspec
_FACTS = (
    "generation",
    "ETag",
    "etag",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
)


class FileVersion(NamedTuple):
    """``size``: bytes, -1 for a file that is not there. ``version``: its time, or what the file
    system calls its contents; "" where it says neither.
    """

    size: int
    version: str

    def __str__(self) -> str:
        if self.size < 0:
            return "none"
        return f"{self.size} bytes" + (f" of {self.version}" if self.version else "")


def file_version(system: Any, path: str) -> FileVersion:
    """The file as it is now. ``system``: pyarrow's file system, or one of fsspec within it. Raises
    OSError.
    """
    other = getattr(getattr(system, "handler", None), "fs", None)
    if other is None:
        info = system.get_file_info(path)
        if info.size is None:
            return FileVersion(-1, "")
        return FileVersion(
            info.size, "" if info.mtime_ns is None else str(np.datetime64(info.mtime_ns, "ns"))
        )
    other.invalidate_cache(other._parent(path))  # it would tell what it has heard before
    try:
        facts = other.info(path)
    except FileNotFoundError:
        return FileVersion(-1, "")
    return FileVersion(
        int(facts.get("size") or 0),
        next((str(facts[name]) for name in _FACTS if facts.get(name)), ""),
    )
