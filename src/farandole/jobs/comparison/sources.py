"""The differences between the sources and the environments of runs."""

from __future__ import annotations

import difflib
import filecmp
import os
from collections.abc import Iterator, Sequence
from typing import Any

from farandole.job.runs.folder import RunFolder
from farandole.jobs.environments.build import LOCK
from farandole.jobs.environments.installed import canonical

MOST_FILES, MOST_LINES = 50, 200  # files with a diff, and lines of each
_LARGEST = 1 << 20  # maximum bytes of a file to compare line by line


def source_differences(folders: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return the differing files of the snapshots, sorted by path; none if a run has no snapshot.

    Each is a dict with

    - ``path``: The path in the snapshot.
    - ``runs``: ``same``, ``changed``, ``added`` or ``missing`` for each run, relative to the first.
    - ``diff``: The lines of a unified diff between the first run and the first run with a different
      file; empty for a binary or large file.
    - ``truncated``: Whether lines of the diff are missing.
    """
    roots = [folder.file("snapshot") for folder in folders]
    files = [set(_files(root)) for root in roots]
    if not all(os.path.isdir(root) for root in roots):
        return []
    found: list[dict[str, Any]] = []
    for path in sorted(set[str]().union(*files)):
        states = [_state(path, roots[0], root) for root in roots]
        if any(state != "same" for state in states):
            other = next(at for at, state in enumerate(states) if state != "same")
            shown = len(found) < MOST_FILES
            diff, truncated = _diff(path, roots[0], roots[other]) if shown else ([], True)
            found.append({"path": path, "runs": states, "diff": diff, "truncated": truncated})
    return found


def environment_differences(folders: Sequence[RunFolder]) -> dict[str, list[str | None]]:
    """Return the differing versions by name, with an entry per run; None if a run lacks it.

    This covers the versions of Python, Farandole and the system, and of the packages in
    environments built for the runs.
    """
    known = [{**_versions(folder), **_locked(folder)} for folder in folders]
    names = sorted({name for each in known for name in each})
    rows = {name: [each.get(name) for each in known] for name in names}
    return {name: row for name, row in rows.items() if any(value != row[0] for value in row)}


def _versions(folder: RunFolder) -> dict[str, str]:
    versions = folder.submitted().get("versions", {})
    return {str(name): str(value) for name, value in versions.items()}


def _locked(folder: RunFolder) -> dict[str, str]:
    try:
        with open(folder.file(LOCK), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.split(";")[0].strip().rstrip("\\").partition("==") for line in lines)
    return {
        canonical(name.strip()): version.strip()
        for name, equals, version in pairs
        if equals and not name.lstrip().startswith(("#", "-"))
    }


def _files(root: str) -> Iterator[str]:
    for where, _, names in os.walk(root):
        for name in names:
            yield os.path.relpath(os.path.join(where, name), root)


def _state(path: str, first: str, other: str) -> str:
    here, there = os.path.join(first, path), os.path.join(other, path)
    if not os.path.lexists(here):
        return "added" if os.path.lexists(there) else "same"
    if not os.path.lexists(there):
        return "missing"
    if os.path.islink(here) or os.path.islink(there):
        return "same" if _target(here) == _target(there) else "changed"
    return "same" if filecmp.cmp(here, there, shallow=False) else "changed"


def _target(path: str) -> str:
    return os.readlink(path) if os.path.islink(path) else ""


def _diff(path: str, first: str, other: str) -> tuple[list[str], bool]:
    """Return the lines of a unified diff, and whether lines are missing."""
    before, after = _lines(os.path.join(first, path)), _lines(os.path.join(other, path))
    if before is None or after is None:
        return [], True
    found: list[str] = []
    for line in difflib.unified_diff(before, after, path, path, lineterm=""):
        if len(found) == MOST_LINES:
            return found, True
        found.append(line[:1000])
    return found, False


def _lines(path: str) -> list[str] | None:
    """Return the lines of a text file, empty for a missing one; None if it is binary or large."""
    if os.path.islink(path):
        return None
    try:
        if os.path.getsize(path) > _LARGEST:
            return None
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        return None
