"""Folders of commits: on this machine, or behind a URL that fsspec reads."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import Any, Protocol

from farandole.base.optional import require
from farandole.core.api.commits.commit_file import Commit

KEPT = 2  # files in a folder: the previous commit is used if the newest one is damaged
_NAME = re.compile(r"commit-(\d{12})")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class _Files(Protocol):
    """The files of one folder."""

    def names(self) -> list[str]: ...
    def read(self, name: str) -> bytes: ...
    def write(self, name: str, data: bytes) -> None: ...
    def remove(self, name: str) -> None: ...


class CommitFolder:
    """The commits in a folder, numbered in the order in which they were written.

    ``path``: a path, or a URL of any file system of fsspec. Raises ImportError if fsspec, or its
    package for the URL, is missing. Methods raise OSError if the folder cannot be used.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._files: _Files = _Remote(path) if _is_remote(path) else _Local(_local(path))

    def write(self, commit: Commit) -> str:
        """Write ``commit`` as the newest one, remove all but the newest ``KEPT``, and return its
        path. A reader never sees a part of the file.
        """
        known = self._names()
        number = int(known[-1].rpartition("-")[2]) + 1 if known else 1
        name = f"commit-{number:012d}"
        self._files.write(name, commit.to_bytes())
        for old in [*known, name][:-KEPT]:
            # Another rank 0 may have removed the file.
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(old)
        return self.path_of(name)

    def newest(self, report: Callable[[str], object]) -> Commit | None:
        """Return the newest commit that is not damaged; None if there is none.

        ``report`` is called with a sentence for each damaged file.
        """
        for name in reversed(self._names()):
            try:
                return Commit.from_bytes(self._files.read(name))
            except ValueError as error:
                report(f"the commit {self.path_of(name)} is damaged: {error}")
        return None

    def path_of(self, name: str) -> str:
        """Return the path or URL of a file in the folder."""
        return f"{self.path.rstrip('/')}/{name}"

    def _names(self) -> list[str]:
        return sorted(name for name in self._files.names() if _NAME.fullmatch(name))


class _Local:
    """A folder on this machine. A file appears whole: it gets its name when it is on disk."""

    def __init__(self, path: str) -> None:
        self._path = path

    def names(self) -> list[str]:
        try:
            return os.listdir(self._path)
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        with open(os.path.join(self._path, name), "rb") as file:
            return file.read()

    def write(self, name: str, data: bytes) -> None:
        os.makedirs(self._path, exist_ok=True)
        # One name for all writes, so that an interrupted one leaves at most one file.
        partial = os.path.join(self._path, ".partial")
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, os.path.join(self._path, name))

    def remove(self, name: str) -> None:
        os.remove(os.path.join(self._path, name))


class _Remote:
    """A folder behind a URL. Object stores show a file once it is complete; elsewhere the digest
    shows that a part is missing.
    """

    def __init__(self, url: str) -> None:
        core = require("fsspec.core", f"writing commits to {url}")
        self._system: Any
        self._system, self._path = core.url_to_fs(url)

    def names(self) -> list[str]:
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        return [str(each).rstrip("/").rpartition("/")[2] for each in found]

    def read(self, name: str) -> bytes:
        return bytes(self._system.cat_file(f"{self._path}/{name}"))

    def write(self, name: str, data: bytes) -> None:
        self._system.makedirs(self._path, exist_ok=True)
        self._system.pipe_file(f"{self._path}/{name}", data)

    def remove(self, name: str) -> None:
        self._system.rm_file(f"{self._path}/{name}")


def _is_remote(path: str) -> bool:
    return bool(_URL.match(path)) and not path.startswith("file://")


def _local(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path.removeprefix("file://")))
