"""The snapshot of a run's source: selection and copies of its files.

Equal files are stored once for all runs of a home, yet each run's folder is complete.
"""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple

from farandole.errors import SettingsError, counted
from farandole.job.runs.folder import make_private
from farandole.job.runs.home import RunsHome
from farandole.jobs.snapshot.limits import DEFAULT, SnapshotLimit, check_limit
from farandole.jobs.snapshot.rules import EVERYTHING, rules_of
from farandole.jobs.snapshot.scan import SourceScan, scan
from farandole.jobs.snapshot.store import ContentStore

_SHOWN = 5  # names in a message


class Snapshot(NamedTuple):
    """The facts about a snapshot.

    - ``digest``: SHA-256 over the names, modes and contents of all files; equal for equal sources.
    - ``files``, ``bytes``: The number of files and their total size.
    - ``rules``: The file with the ignore rules, or ``default``.
    - ``warnings``: Messages for the user, one line each.
    """

    digest: str
    files: int
    bytes: int
    rules: str
    warnings: tuple[str, ...]


def check_source(source: str) -> None:
    """Raise SettingsError unless the source is a folder."""
    if not os.path.isdir(source):
        problem = "is not a folder" if os.path.exists(source) else "does not exist"
        raise SettingsError(
            f"the source folder {source!r} {problem} (working directory: {os.getcwd()})"
        )


def select(source: str, home: RunsHome, limit: SnapshotLimit = DEFAULT) -> SourceScan:
    """Return the files of a source folder that belong to its snapshot. Copies nothing.

    Raises SettingsError if the source is not a folder, is larger than ``limit`` or has files that
    cannot be copied.
    """
    check_source(source)
    if os.path.realpath(source) == os.path.realpath(home.path):
        raise SettingsError(
            f"the source folder {source!r} is the home of all runs (FARANDOLE_HOME); submit from"
            " the folder of the program, or pass it with --source"
        )
    found = scan(source, rules_of(source), without=home.path, most=limit.scanned)
    check_limit(source, found, limit)
    if found.refused:
        raise SettingsError(
            f"the snapshot of {source!r} cannot hold {_listed(found.refused)}; delete them or name"
            " them in .amlignore"
        )
    return found


def select_all(snapshot: str) -> SourceScan:
    """Return all files of an existing snapshot, for a rerun."""
    return scan(snapshot, EVERYTHING)


def write(found: SourceScan, into: str, home: RunsHome) -> Snapshot:
    """Copy the selected files to the new folder ``into``. Raises OSError, as on a full disk."""
    warnings = _exclusion_notes(found)
    digest, changing = _copy(found, into, home)
    if changing:
        warnings.append(
            f"changed while the snapshot was taken: {_listed(changing)}; the snapshot has one"
            " version of each"
        )
    size = sum(file.bytes for file in found.files)
    return Snapshot(digest, len(found.files), size, found.rules, tuple(warnings))


def _exclusion_notes(found: SourceScan) -> list[str]:
    """Return messages about files that the snapshot lacks although no rule excludes them."""
    messages = []
    if found.secrets:
        messages.append(
            f"excluded from the snapshot because they look like secrets: {_listed(found.secrets)};"
            " a line such as !NAME in .amlignore includes a file"
        )
    if found.broken:
        messages.append(
            f"excluded from the snapshot because their targets are missing: {_listed(found.broken)}"
        )
    return messages


def _copy(found: SourceScan, into: str, home: RunsHome) -> tuple[str, list[str]]:
    """Copy the found files; return the digest and the names of files that kept changing."""
    store = ContentStore(home)
    total = hashlib.sha256()
    changing = []
    make_private(into)
    for name in found.folders:
        os.mkdir(os.path.join(into, name), 0o700)
        total.update(b"folder %b\0" % os.fsencode(name))
    for file in found.files:
        stored = store.place(file.path, os.path.join(into, file.name), file.executable)
        if not stored.stable:
            changing.append(file.name)
        kind = b"program" if file.executable else b"file"
        total.update(b"%b %b\0%b\0" % (kind, os.fsencode(file.name), stored.digest.encode()))
    for link in found.links:
        os.symlink(link.target, os.path.join(into, link.name))
        names = os.fsencode(link.name), os.fsencode(link.target)
        total.update(b"link %b\0%b\0" % names)
    return total.hexdigest(), changing


def _listed(names: tuple[str, ...] | list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {counted(more, 'other')}" if more > 0 else shown
