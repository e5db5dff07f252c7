"""The store of all snapshots' files in a home, each content once, and copies of folders.

A file of a snapshot is a hard link to the stored, read-only file, so a thousand runs of one source
take the disk space of a single run. Where links are impossible, the file is a copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
import time
from typing import NamedTuple

from farandole.job.runs.folder import make_private
from farandole.job.runs.home import RunsHome

_CHUNK = 1 << 20
_TRIES = 3  # attempts to copy a file that changes during the copy
_FICLONE = 0x40049409  # ioctl: share the blocks of another file (Btrfs, XFS, bcachefs)
_OLD = 60.0  # seconds after a file's last change; no process is still linking it by then
_numbers = itertools.count()


class StoredFile(NamedTuple):
    """A file of a snapshot. ``stable`` is False if the original changed during every copy."""

    digest: str
    stable: bool


class ContentStore:
    """Files by the SHA-256 of their content and their executable bit."""

    def __init__(self, home: RunsHome) -> None:
        self._root = home.folder("sources")

    def place(self, path: str, into: str, executable: bool) -> StoredFile:
        """Create ``into`` with the content of the file ``path``.

        A file that changes during the copy is copied again, up to three times in total. Raises
        OSError if it cannot be read or written.
        """
        stored = StoredFile("", False)
        for _ in range(_TRIES):
            stored = self._place(path, into, executable)
            if stored.stable:
                break
        return stored

    def _place(self, path: str, into: str, executable: bool) -> StoredFile:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(into)
        with open(path, "rb") as file:
            before = _version(file.fileno())
            digest = _digest(file.fileno())
            known = self._path(digest, executable)
            if not self._link(known, into, before[0]):
                digest = self._add(file.fileno(), executable)
                known = self._path(digest, executable)
                if not self._link(known, into, os.path.getsize(known)):
                    clone(known, into)
            return StoredFile(digest, _version(file.fileno()) == before)

    def _path(self, digest: str, executable: bool) -> str:
        return os.path.join(self._root, digest[:2], digest[2:] + ("-x" if executable else ""))

    def _link(self, known: str, into: str, size: int) -> bool:
        """Link a stored file of ``size`` bytes and return True; return False if there is none."""
        try:
            if os.path.getsize(known) != size:  # truncated by a machine crash
                os.unlink(known)
                return False
            os.link(known, into)
            return True
        except FileNotFoundError:
            return False
        except OSError:  # too many links, or a file system without hard links
            shutil.copyfile(known, into)
            shutil.copymode(known, into)
            return True

    def _add(self, descriptor: int, executable: bool) -> str:
        """Store the content of an open file, and return its digest."""
        name = f"new-{os.getpid()}-{next(_numbers)}-{time.monotonic_ns()}"
        temporary = os.path.join(self._root, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        out = os.open(temporary, flags, 0o500 if executable else 0o400)
        try:
            digest = _digest(descriptor, out)
            known = self._path(digest, executable)
            make_private(os.path.dirname(known))
            os.rename(temporary, known)
            return digest
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        finally:
            os.close(out)

    def collect(self) -> int:
        """Delete stored files that no snapshot uses, and return the freed bytes."""
        freed, now = 0, time.time()
        for where, _, names in os.walk(self._root):
            for name in names:
                path = os.path.join(where, name)
                with contextlib.suppress(FileNotFoundError):
                    status = os.lstat(path)
                    if status.st_nlink == 1 and now - status.st_ctime > _OLD:
                        os.unlink(path)
                        freed += status.st_size
        return freed


def _digest(descriptor: int, out: int | None = None) -> str:
    """Return the digest of an open file, and write its content to ``out`` if given."""
    found = hashlib.sha256()
    offset = 0
    while data := os.pread(descriptor, _CHUNK, offset):
        found.update(data)
        offset += len(data)
        rest = memoryview(data)
        while out is not None and rest:
            rest = rest[os.write(out, rest) :]
    return found.hexdigest()


def _version(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


def clone(path: str, into: str) -> None:
    """Make a writable copy of a file, sharing its blocks if the file system supports it."""
    executable = os.stat(path).st_mode & 0o100
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(path, "rb") as source, open(os.open(into, flags, 0o600 | executable), "wb") as target:
        try:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        except OSError:  # the file system cannot share blocks
            shutil.copyfileobj(source, target, _CHUNK)


def clone_tree(source: str, into: str) -> None:
    """Copy a folder, with writable copies of its files. Links stay links."""
    make_private(into)
    with os.scandir(source) as entries:
        for entry in entries:
            target = os.path.join(into, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
            elif entry.is_dir():
                clone_tree(entry.path, target)
            else:
                clone(entry.path, target)
