"""Versions of files, to detect that a file has changed since it was read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# keys of fsspec's file information
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
    """The version of a file. ``size``: in bytes, -1 for a missing file. ``version``: its
    modification time, or the file system's id for its contents; "" if neither is known.
    """

    size: int
    version: str

    def __str__(self) -> str:
        if self.size < 0:
            return "none"
        return f"{self.size} bytes" + (f" of {self.version}" if self.version else "")


def file_version(system: Any, path: str) -> FileVersion:
    """Return the current version of a file. Raises OSError.

    ``system``: pyarrow's file system, or a file system of fsspec within it.
    """
    other = getattr(getattr(system, "handler", None), "fs", None)
    if other is None:
        info = system.get_file_info(path)
        if info.size is None:
            return FileVersion(-1, "")
        return FileVersion(
            info.size, "" if info.mtime_ns is None else str(np.datetime64(info.mtime_ns, "ns"))
        )
    other.invalidate_cache(other._parent(path))  # otherwise fsspec may return cached information
    try:
        facts = other.info(path)
    except FileNotFoundError:
        return FileVersion(-1, "")
    return FileVersion(
        int(facts.get("size") or 0),
        next((str(facts[name]) for name in _FACTS if facts.get(name)), ""),
    )
