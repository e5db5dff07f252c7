"""Folders of commits: on this machine, or at a URL supported by fsspec."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from farandole.base.optional import require, require_file_system
from farandole.core.api.commits.commit_file import Commit, origin_of
from farandole.errors import DataError

COMMIT = "commit"  # the kind of rank 0's files
KEPT = 2  # files in a folder: the newest one, and the previous one in case the newest is damaged
RESTART = "Use a different folder to train from the beginning"
FULL = (errno.ENOSPC, errno.EDQUOT)
_BEGIN = 1 << 12  # bytes that contain the first line of a commit
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class _Files(Protocol):
    """The files of one folder. ``begin`` returns a file's first ``_BEGIN`` bytes."""

    def names(self) -> list[str]: ...
    def read(self, name: str) -> bytes: ...
    def begin(self, name: str) -> bytes: ...
    def write(self, name: str, parts: Sequence[bytes]) -> None: ...
    def remove(self, name: str) -> None: ...
    def size(self, name: str) -> int: ...


class ForeignCommitError(Exception):
    """Another job writes commits to the same folder. ``name``: its commit."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was written by another job")
        self.name = name


class CommitFolder:
    """The commits in a folder, numbered in the order in which they were written.

    ``path``: a path, or a URL of any file system of fsspec. ``kind``: the first part of the names
    of the files. Raises ImportError if fsspec, or its package for the URL, is missing. Methods
    raise OSError if the folder cannot be used.
    """

    def __init__(self, path: str, kind: str = COMMIT) -> None:
        self.path = path
        self._kind = kind
        self._name = re.compile(rf"{re.escape(kind)}-(\d{{12}})")
        self.local = "" if _is_remote(path) else _local(path)
        self._files: _Files = _Local(self.local) if self.local else _Remote(path)
        self._first: str | None = None  # the newest file before this job's first one
        self._damaged: set[str] = set()

    def write(self, commit: Commit) -> str:
        """Write ``commit`` as the newest one, remove all but the newest ``KEPT`` undamaged ones,
        and return its path. A reader never sees an incomplete file.

        Raises ForeignCommitError if another job has written a commit since this job began.
        """
        known = self._names()
        newest = known[-1] if known else ""
        if self._first is None:
            self._first = newest
        if newest != self._first and origin_of(self._files.begin(newest))[0] not in (
            "",
            commit.job,
        ):
            raise ForeignCommitError(self.path_of(newest))
        number = int(newest.rpartition("-")[2]) + 1 if newest else 1
        name = f"{self._kind}-{number:012d}"
        try:
            self._files.write(name, commit.to_parts())
        except OSError as error:
            if error.errno not in FULL or not self._make_space(known, len(commit.content)):
                raise
            self._files.write(name, commit.to_parts())
        kept = [*(each for each in known if each not in self._damaged), name][-KEPT:]
        for old in set(known) - set(kept):
            # Another rank 0 may have removed the file, or this one to make space.
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(old)
        return self.path_of(name)

    def _make_space(self, known: list[str], size: int) -> bool:
        """Remove all but the newest undamaged commit in a full folder on this machine, if this
        frees ``size`` bytes. Return whether they are free.
        """
        good = [each for each in known if each not in self._damaged]
        spare = [each for each in known if each not in good[-1:]]
        free = self.space()
        if free is None or not good or not spare:
            return False
        if free + sum(map(self._files.size, spare)) <= size:
            return False
        for name in spare:
            self._files.remove(name)
        return True

    def newest(
        self,
        report: Callable[[str], object],
        is_complete: Callable[[Commit], bool] = lambda commit: True,
    ) -> Commit | None:
        """Return the newest commit that is not damaged, preferably one that ``is_complete``; None
        if the folder has no commit.

        ``report`` is called with a sentence for each damaged file. Raises DataError if all are
        damaged.
        """
        names = self._names()
        self._first = names[-1] if names else ""
        found = None
        for name in reversed(names):
            try:
                commit = Commit.from_bytes(self._files.read(name))
            except ValueError as error:
                self._damaged.add(name)
                report(f"the commit {self.path_of(name)} is damaged: {error}")
                continue
            if is_complete(commit):
                return commit
            found = found or commit
        if found is not None:
            return found
        if names:
            paths = ", ".join(map(self.path_of, names))
            raise DataError(f"all commits are damaged: {paths}. {RESTART}")
        return None

    def of(self, job: str, number: int) -> Commit | None:
        """Return the commit ``number`` of a job; None without it. Raises ValueError if it is
        damaged.
        """
        name = self._find(job, number)
        return None if name is None else Commit.from_bytes(self._files.read(name))

    def has(self, job: str, number: int) -> bool:
        """Return whether the folder has the commit ``number`` of a job, perhaps damaged."""
        return self._find(job, number) is not None

    def _find(self, job: str, number: int) -> str | None:
        wanted = job, number
        names = reversed(self._names())
        return next((each for each in names if origin_of(self._files.begin(each)) == wanted), None)

    def check_writable(self) -> None:
        """Raise OSError, or an error of the URL's file system, unless files can be written."""
        name = ".probe"
        try:
            self._files.write(name, [b"probe"])
            self._files.remove(name)
        except OSError as error:
            # A full disk may have space by the time of the first commit.
            if error.errno not in FULL:
                raise

    def space(self) -> int | None:
        """Return the number of free bytes; None if it is unknown."""
        try:
            return shutil.disk_usage(self.local).free if self.local else None
        except OSError:
            return None

    def path_of(self, name: str) -> str:
        """Return the path or URL of a file in the folder."""
        return f"{self.path.rstrip('/')}/{name}"

    def _names(self) -> list[str]:
        return sorted(name for name in self._files.names() if self._name.fullmatch(name))


class _Local:
    """A folder on this machine. A file appears complete: it gets its name once it is on disk."""

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

    def begin(self, name: str) -> bytes:
        with open(os.path.join(self._path, name), "rb") as file:
            return file.read(_BEGIN)

    def write(self, name: str, parts: Sequence[bytes]) -> None:
        os.makedirs(self._path, exist_ok=True)
        # One name for all writes of a rank, so that an interrupted one leaves at most one file.
        kind = name.rpartition("-")[0]
        ending = "" if kind in ("", COMMIT) else f"-{kind}"
        partial = os.path.join(self._path, f".partial{ending}")
        try:
            with open(partial, "wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            os.rename(partial, os.path.join(self._path, name))
        except OSError:
            # An incomplete file would use the last space of a full disk.
            with contextlib.suppress(OSError):
                os.remove(partial)
            raise

    def remove(self, name: str) -> None:
        os.remove(os.path.join(self._path, name))

    def size(self, name: str) -> int:
        return os.path.getsize(os.path.join(self._path, name))


class _Remote:
    """A folder at a URL. Object stores show a file only when it is complete; on other file systems
    the digest reveals an incomplete file.
    """

    def __init__(self, url: str) -> None:
        require_file_system(url, f"writing commits to {url}")
        self._system: Any
        self._system, self._path = require("fsspec.core", "").url_to_fs(url)

    def names(self) -> list[str]:
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        return [str(each).rstrip("/").rpartition("/")[2] for each in found]

    def read(self, name: str) -> bytes:
        return bytes(self._system.cat_file(f"{self._path}/{name}"))

    def begin(self, name: str) -> bytes:
        return bytes(self._system.cat_file(f"{self._path}/{name}", start=0, end=_BEGIN))

    def write(self, name: str, parts: Sequence[bytes]) -> None:
        self._system.makedirs(self._path, exist_ok=True)
        self._system.pipe_file(f"{self._path}/{name}", b"".join(parts))

    def remove(self, name: str) -> None:
        self._system.rm_file(f"{self._path}/{name}")

    def size(self, name: str) -> int:
        return int(self._system.size(f"{self._path}/{name}"))


def _is_remote(path: str) -> bool:
    return bool(_URL.match(path)) and not path.startswith("file://")


def _local(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path.removeprefix("file://")))
