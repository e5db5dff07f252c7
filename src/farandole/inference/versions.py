"""Identities of models: the version of a file that may be overwritten, and a digest of content that
is equal in all processes.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from typing import Any

import cloudpickle

from farandole.base.optional import require
from farandole.base.pickled import dumps
from farandole.data import paths

# entries to ignore: Keras's has the time; torch's is made of checksums
_CHANGING = ("metadata.json", ".data/serialization_id")
_FACTS = (
    "ETag",
    "etag",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
    "generation",
    "size",
)


def version(path: str) -> str:
    """Return size and time of a file, or of all files in a folder; for a URL the file system's
    facts (etag, time, size). "" if they are unknown.
    """
    local = paths.local(path)
    try:
        if local is None:
            return _remote(path)
        return "missing" if not os.path.exists(local) else _digest(sorted(_local(local)))
    except Exception:  # raised by any file system; opening the model reports it better
        return ""


def _local(path: str) -> list[tuple[Any, ...]]:
    files = (
        [path]
        if not os.path.isdir(path)
        else [os.path.join(top, n) for top, _, ns in os.walk(path) for n in ns]
    )
    facts = [(os.path.relpath(name, path), os.stat(name)) for name in files]
    return [(name, each.st_size, each.st_mtime_ns) for name, each in facts]


def _remote(path: str) -> str:
    system, inside = require("fsspec.core", "loading the model").url_to_fs(path)
    system.invalidate_cache()
    info = system.info(inside)
    files = system.find(inside, detail=True) if info["type"] == "directory" else {inside: info}
    facts = [
        (name, [(key, str(each[key])) for key in _FACTS if key in each])
        for name, each in sorted(files.items())
    ]
    # a size alone identifies nothing
    return _digest(facts) if all(len(each) > 1 for _, each in facts) else ""


def _digest(facts: Any) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def identity(content: bytes) -> str:
    """Return the identity of pickled or saved content, without the random ids that cloudpickle
    gives to the program's classes, and without Keras's time of saving.
    """
    digest = hashlib.sha256()
    for part in _parts(content):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:24]


def identity_of(value: Any) -> str:
    """Return the identity of a function or class, from its pickle."""
    return identity(dumps(value))


def _parts(content: bytes) -> list[bytes]:
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return [_without_numbers(content)]
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = sorted(name for name in archive.namelist() if not name.endswith(_CHANGING))
        members = [(name, archive.read(name)) for name in names]
    return [
        part
        for name, each in members
        for part in (name.encode(), _without_numbers(each) if name.endswith("pkl") else each)
    ]


def _without_numbers(content: bytes) -> bytes:
    drawn = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {})
    for number in drawn.values():
        content = content.replace(number.encode(), b"")
    return content
