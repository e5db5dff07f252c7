"""The cache of fetched inputs: one folder per version of a source, shared by all runs of a home.

One process fetches an entry while others wait for its lock. A process keeps the locks of the
entries it uses, so that no entry is deleted during a run.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from farandole.errors import RunError, SettingsError
from farandole.job.runs.folder import RunFolder, make_private, read_json, write_json
from farandole.job.runs.home import RunsHome
from farandole.jobs.details import readable_size
from farandole.jobs.inputs.sources import InputSource, RemoteFile, file_system, listing

T = TypeVar("T")

CACHE_VARIABLE = "FARANDOLE_INPUTS_LIMIT"
_PART_OF_DISK = 0.25  # the cache's share of the file system, unless a limit is set
_TRIES = 3  # attempts after connection errors
_PAUSE = 1.0  # seconds before the second attempt; doubles each time
_held: list[int] = []  # descriptors of the locks of entries in use, until the process ends


def release() -> None:
    """Release the locks of all entries that this process uses."""
    while _held:
        os.close(_held.pop())


class InputCache:
    """The fetched inputs below a home's folder ``inputs``."""

    def __init__(self, home: RunsHome) -> None:
        self._root = os.path.join(home.path, "inputs")

    def fetch(self, source: InputSource, folder: RunFolder) -> str:
        """Return the path of a source in the cache; fetch the source first if it is missing.

        The path is a file if the source is a single file, otherwise a folder. Progress is recorded
        in the events of ``folder``. Raises RunError if the source does not exist, cannot be
        fetched, or changes during the transfer.
        """
        try:
            system, path = file_system(source)
            files = self._listed(system, path, source)
        except (RunError, ImportError):
            raise
        except Exception as error:
            raise RunError(f"{_what(source)} cannot be read: {_text(error, source)}") from error
        entry = os.path.join(make_private(self._root), _key(source, files, folder))
        lock = self._lock(entry, source, folder)
        if not _complete(entry):
            self._make_room(sum(max(0, file.bytes) for file in files), source, entry)
            shutil.rmtree(entry, ignore_errors=True)
            self._fetch(system, path, source, files, entry, folder)
        os.utime(os.path.join(entry, "entry.json"))  # the time of the last use
        fcntl.flock(lock, fcntl.LOCK_SH)
        _held.append(lock)
        data = os.path.join(entry, "data")
        return os.path.join(data, files[0].name) if len(files) == 1 else data

    @staticmethod
    def _listed(system: Any, path: str, source: InputSource) -> list[RemoteFile]:
        return _with_retries(lambda: listing(system, path, source))

    def _lock(self, entry: str, source: InputSource, folder: RunFolder) -> int:
        """Lock an entry and return the descriptor: shared if the entry is complete, otherwise
        exclusive.

        Processes wait for a shared lock, because users of a complete entry hold their lock until
        they exit.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        lock = os.open(entry + ".lock", flags, 0o600)
        waits = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waits:
                    text = f"waits for another run that fetches {source.shown}"
                    folder.record("progress", text=text)
                waits = True
                fcntl.flock(lock, fcntl.LOCK_SH)
            if _complete(entry):
                return lock
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _complete(entry):  # changing the lock is not atomic: check again
                    return lock
            fcntl.flock(lock, fcntl.LOCK_UN)
            time.sleep(
                random.uniform(0.0, 0.05)
            )  # several processes may reach this point simultaneously

    def _fetch(
        self,
        system: Any,
        path: str,
        source: InputSource,
        files: list[RemoteFile],
        entry: str,
        folder: RunFolder,
    ) -> None:
        """Fetch all files of an entry and mark it as complete."""
        data = os.path.join(entry, "data")
        progress = _Progress(source, files, folder)
        try:
            for file in files:
                target = os.path.join(data, file.name)
                make_private(os.path.dirname(target))
                _with_retries(functools.partial(system.get_file, file.path, target))
                self._check_size(source, file, os.path.getsize(target))
                os.chmod(target, 0o400)
                progress.add(os.path.getsize(target))
            after = self._listed(system, path, source)
        except RunError:
            shutil.rmtree(entry, ignore_errors=True)
            raise
        except Exception as error:
            shutil.rmtree(entry, ignore_errors=True)
            raise RunError(f"{_what(source)} cannot be fetched: {_text(error, source)}") from error
        if after != files:
            shutil.rmtree(entry, ignore_errors=True)
            raise RunError(f"{_what(source)} changed during the transfer: {_change(files, after)}")
        write_json(
            os.path.join(entry, "entry.json"),
            {
                "source": source.shown,
                "time": time.time(),
                "files": [
                    [file.name, os.path.getsize(os.path.join(data, file.name))] for file in files
                ],
            },
        )

    @staticmethod
    def _check_size(source: InputSource, file: RemoteFile, size: int) -> None:
        if file.bytes >= 0 and size != file.bytes:
            raise RunError(
                f"{_what(source)} changed during the transfer: {file.name} had {file.bytes:,}"
                f" bytes, and {size:,} arrived"
            )

    # --- room

    def _make_room(self, wanted: int, source: InputSource, entry: str) -> None:
        """Delete unused entries, least recently used first, until ``wanted`` bytes fit.

        Raises RunError if the disk cannot hold them.
        """
        self.collect(max(0, limit(self._root) - wanted), keep=entry)
        free = shutil.disk_usage(self._root).free
        if wanted > free:
            raise RunError(
                f"{_what(source)} has {readable_size(wanted)}, and {self._root} has"
                f" {readable_size(free)} free; delete files there, or set FARANDOLE_HOME to a"
                " larger disk"
            )

    def collect(self, most: int = 0, keep: str = "") -> int:
        """Delete unused entries until at most ``most`` bytes remain, and return the bytes freed."""
        entries = sorted(self._entries())
        total, freed = sum(size for _, size, _ in entries), 0
        for _, size, entry in entries:
            if total <= most:
                break
            if entry != keep and _delete_unused(entry):
                total -= size
                freed += size
        return freed

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """Yield the time of the last use, the bytes and the path of each entry."""
        try:
            names = os.listdir(self._root)
        except FileNotFoundError:
            return
        for name in names:
            path = os.path.join(self._root, name)
            if not name.endswith(".lock"):
                with contextlib.suppress(FileNotFoundError):
                    facts = os.path.join(path, "entry.json")
                    used = os.path.getmtime(facts if os.path.exists(facts) else path)
                    yield used, _size(path), path


class _Progress:
    """Records the progress of a transfer as events, at most one every two seconds."""

    def __init__(self, source: InputSource, files: list[RemoteFile], folder: RunFolder) -> None:
        self._source = source
        self._folder = folder
        self._total = sum(max(0, file.bytes) for file in files)
        self._done = 0
        self._next = time.monotonic() + 2.0
        count = f"{len(files)} files, " if len(files) > 1 else ""
        folder.record(
            "progress", text=f"fetches {source.shown} ({count}{self._shown(self._total)})"
        )

    @staticmethod
    def _shown(size: int) -> str:
        return readable_size(size)

    def add(self, size: int) -> None:
        self._done += size
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 2.0
            done = f"{self._shown(self._done)} of {self._shown(self._total)}"
            self._folder.record("progress", text=f"fetched {done} of {self._source.shown}")


def limit(root: str) -> int:
    """Return the largest size of the cache in bytes.

    It is ``$FARANDOLE_INPUTS_LIMIT``; by default, a quarter of the file system. Raises
    SettingsError if the variable is not a number.
    """
    text = os.environ.get(CACHE_VARIABLE, "")
    if not text:
        return int(shutil.disk_usage(root).total * _PART_OF_DISK)
    if not text.isdecimal():
        raise SettingsError(f"{CACHE_VARIABLE}={text!r} must be a number of bytes")
    return int(text)


def _delete_unused(entry: str) -> bool:
    """Delete an entry unless a process uses or fetches it; return whether it is deleted."""
    lock = os.open(entry + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        shutil.rmtree(entry, ignore_errors=True)
        return True
    finally:
        os.close(lock)


def _complete(entry: str) -> bool:
    """Return whether an entry has all its files at their full size."""
    facts = read_json(os.path.join(entry, "entry.json"))
    if facts is None:
        return False
    try:
        return all(
            os.path.getsize(os.path.join(entry, "data", name)) == size
            for name, size in facts["files"]
        )
    except OSError:
        return False


def _key(source: InputSource, files: list[RemoteFile], folder: RunFolder) -> str:
    """Return the name of the entry for the current version of a source.

    A source without version information is fetched for each run.
    """
    known = all(file.version for file in files)
    facts = [source.shown, *map(repr, files), *([] if known else [folder.run_id])]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def _with_retries(action: Callable[[], T]) -> T:
    """Return the result of ``action``, with further attempts after connection errors."""
    pause = _PAUSE
    for attempt in range(1, _TRIES + 1):
        try:
            return action()
        except (FileNotFoundError, PermissionError, RunError, ImportError):
            raise
        except Exception:
            if attempt == _TRIES:
                raise
        time.sleep(pause)
        pause *= 2
    raise AssertionError


def _change(before: list[RemoteFile], after: list[RemoteFile]) -> str:
    """Return the first difference between two listings as text."""
    then, now = ({file.name: file for file in files} for files in (before, after))
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            return f"{name} was {_version(then.get(name))}, and is {_version(now.get(name))}"
    return "its order"


def _version(file: RemoteFile | None) -> str:
    if file is None:
        return "absent"
    return f"{file.bytes:,} bytes" + (f" of version {file.version}" if file.version else "")


def _what(source: InputSource) -> str:
    return f"the input {source.name!r} ({source.shown})"


def _text(error: Exception, source: InputSource) -> str:
    """Return the text of an error without credentials, which clients' messages may show."""
    text = f"{type(error).__name__}: {error}".replace(source.url, source.shown)
    query = source.url.partition("?")[2]
    return text.replace(query, source.shown.partition("?")[2]) if query else text


def _size(path: str) -> int:
    return sum(
        os.lstat(os.path.join(where, name)).st_size
        for where, _, names in os.walk(path)
        for name in names
    )
