"""Scan of a source folder for the files of its snapshot."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from farandole.jobs.snapshot.rules import IgnoreRules, is_virtual_environment
from farandole.jobs.snapshot.secrets import looks_secret

_SYSTEM = ("/dev", "/proc", "/sys")  # holds no regular data files


class SourceFile(NamedTuple):
    """A file: ``name`` is relative to the source; ``path`` is the path to read."""

    name: str
    path: str
    bytes: int
    executable: bool


class SourceLink(NamedTuple):
    """A symbolic link within the source; ``target`` is relative to the link's folder."""

    name: str
    target: str


class SourceScan(NamedTuple):
    """The result of a scan; all names are relative to the source and sorted.

    - ``secrets``: Files excluded because of their names.
    - ``broken``: Excluded links without a target.
    - ``refused``: Entries that cannot be copied, with the reason.
    - ``rules``: The name of the ignore rules.
    - ``complete``: False if the scan stopped at the maximum number of files.
    """

    files: tuple[SourceFile, ...]
    folders: tuple[str, ...]
    links: tuple[SourceLink, ...]
    secrets: tuple[str, ...]
    broken: tuple[str, ...]
    refused: tuple[str, ...]
    rules: str
    complete: bool


def scan(
    source: str, rules: IgnoreRules, *, without: str = "", most: int = 1_000_000
) -> SourceScan:
    """Return the files, folders and links of ``source`` that ``rules`` do not exclude.

    A link within the source stays a link. A link out of the source counts as its target. The folder
    ``without`` is excluded. The scan stops after ``most`` files.
    """
    scanner = _Scanner(source, rules, without, most)
    scanner.walk("", os.path.realpath(source), (os.path.realpath(source),))
    return scanner.result()


class _Scanner:
    """A scan in progress."""

    def __init__(self, source: str, rules: IgnoreRules, without: str, most: int) -> None:
        self._root = os.path.realpath(source)
        self._rules = rules
        self._without = os.path.realpath(without) if without else ""
        self._most = most
        self._files: list[SourceFile] = []
        self._folders: list[str] = []
        self._links: list[SourceLink] = []
        self._secrets: list[str] = []
        self._broken: list[str] = []
        self._refused: list[str] = []

    def walk(self, folder: str, path: str, above: tuple[str, ...]) -> None:
        """Scan the folder ``folder`` at ``path``.

        ``above``: the real paths of this folder and of the folders that contain it, to detect
        cycles of links.
        """
        try:
            with os.scandir(path) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except PermissionError:
            self._refused.append(f"{folder or '.'} (not readable)")
            return
        self._rules.enter(folder, path)
        for entry in found:
            if len(self._files) > self._most:
                return
            name = os.path.join(folder, entry.name)
            if entry.is_symlink():
                self._link(name, entry.path, above)
            elif entry.is_dir(follow_symlinks=False):
                self._folder(name, entry.path, above)
            else:
                self._file(name, entry.path)

    def _folder(self, name: str, path: str, above: tuple[str, ...]) -> None:
        real = os.path.realpath(path)
        if real == self._without or self._rules.decision(name, True):
            return
        if is_virtual_environment(path):
            return
        self._folders.append(name)
        self.walk(name, path, (*above, real))

    def _link(self, name: str, path: str, above: tuple[str, ...]) -> None:
        real = os.path.realpath(path)
        into_folder = os.path.isdir(real)
        if self._rules.decision(name, into_folder):
            return
        if not os.path.exists(real):
            self._broken.append(name)
        elif self._inside(real):
            inside = os.path.relpath(real, self._root)
            self._links.append(
                SourceLink(name, os.path.relpath(inside, os.path.dirname(name) or "."))
            )
        elif any(real == each or real.startswith(each + os.sep) for each in _SYSTEM):
            self._refused.append(f"{name} (leads to {real})")
        elif not into_folder:
            self._file(name, real)
        elif real not in above:
            self._folder(name, path, above)

    def _inside(self, real: str) -> bool:
        return real == self._root or real.startswith(self._root + os.sep)

    def _file(self, name: str, path: str) -> None:
        decision = self._rules.decision(name, False)
        if decision:
            return
        if decision is None and looks_secret(name):
            self._secrets.append(name)
            return
        try:
            status = os.stat(path)
        except FileNotFoundError:  # deleted during the scan
            return
        if not stat.S_ISREG(status.st_mode):
            self._refused.append(f"{name} ({_kind(status.st_mode)})")
        elif not os.access(path, os.R_OK):
            self._refused.append(f"{name} (not readable)")
        else:
            executable = bool(status.st_mode & stat.S_IXUSR)
            self._files.append(SourceFile(name, path, status.st_size, executable))

    def result(self) -> SourceScan:
        return SourceScan(
            files=tuple(sorted(self._files)),
            folders=tuple(sorted(self._folders)),
            links=tuple(sorted(self._links)),
            secrets=tuple(sorted(self._secrets)),
            broken=tuple(sorted(self._broken)),
            refused=tuple(sorted(self._refused)),
            rules=self._rules.name,
            complete=len(self._files) <= self._most,
        )


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"
