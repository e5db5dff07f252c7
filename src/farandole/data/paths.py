"""Paths and URLs of data as users write them, and the file systems behind them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from farandole.base.optional import require
from farandole.errors import DataError

# schemes that pyarrow supports itself
_NATIVE = ("s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
_SAME = {"s3a": "s3", "s3n": "s3"}  # Hadoop's names of schemes


def local(path: str) -> str | None:
    """Return the path on this machine for ``path``, or None if it is on another machine. Databricks
    mounts ``dbfs:/x`` at /dbfs/x, and volumes at /Volumes.
    """
    scheme, colon, rest = path.partition(":")
    if not colon or len(scheme) < 2 or "/" in scheme:
        return os.path.abspath(path)
    if scheme in ("file", "dbfs"):
        mount = "/dbfs" if scheme == "dbfs" and not _volume(rest) else ""
        return mount + "/" + rest.lstrip("/")
    return None


def _volume(path: str) -> bool:
    return path.lstrip("/").startswith("Volumes/")


def normalized(path: str) -> str:
    """Return the path or URL by which this process reaches ``path``."""
    here = local(path)
    if here is not None:
        return here
    scheme, _, rest = path.partition(":")
    return f"{_SAME.get(scheme, scheme)}:{rest}"


def arrow_filesystem(path: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return pyarrow's file system and the path in it; with ``options``, and for schemes unknown to
    pyarrow, fsspec's file system.
    """
    fs = require("pyarrow.fs", "reading Parquet")
    path = normalized(path)
    scheme, url, _ = path.partition("://")
    if not url:
        return fs.LocalFileSystem(), path
    try:
        if scheme in _NATIVE and not options:
            native: tuple[Any, str] = fs.FileSystem.from_uri(path)
            return native
        fsspec = require("fsspec", f"reading {scheme}://")
        system, inside = fsspec.core.url_to_fs(path, **(options or {}))
        return fs.PyFileSystem(fs.FSSpecHandler(system)), inside
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be reached: {error}") from error
