"""The outputs of a run, listed with their sizes and digests, and the results of functions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any

from farandole.job.report import pickling
from farandole.job.runs.folder import RunFolder, write_json

RESULTS = "results.pkl"
_CHUNK = 1 << 20


def collect(folder: RunFolder, *, digests: bool = True) -> None:
    """Write ``artifacts.json``: path, size and SHA-256 of each output.

    Digests take a second per GB; without ``digests``, they are empty. Links that lead out of the
    run's folder are omitted, with a warning among the run's events.
    """
    found = []
    outputs = folder.folder("outputs")
    for path in sorted(links(outputs)):
        if not is_inside(folder, path):
            name = os.path.relpath(path, outputs)
            folder.record("warning", text=f"outputs/{name} leads out of the run's folder")
    for path in artifacts(folder):
        name = os.path.relpath(path, outputs)
        size = os.path.getsize(path)
        found.append({"path": name, "bytes": size, "sha256": _digest(path) if digests else ""})
    write_json(folder.file("artifacts.json"), {"artifacts": found})


def artifacts(folder: RunFolder, below: str = "") -> list[str]:
    """Return the sorted paths of the output files, without links that lead out of the run's folder.

    ``below``: a folder of outputs; empty for all outputs.
    """
    root = os.path.join(folder.file("outputs"), below)
    return sorted(path for path in files(root) if is_inside(folder, path))


def is_inside(folder: RunFolder, path: str) -> bool:
    """Return whether a path, with all links resolved, is inside the run's folder."""
    return os.path.realpath(path).startswith(os.path.realpath(folder.path) + os.sep)


def links(root: str) -> Iterator[str]:
    """Yield the paths of all symbolic links below ``root``."""
    for where, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = os.path.join(where, name)
            if os.path.islink(path):
                yield path


def files(root: str) -> Iterator[str]:
    """Yield the paths of all files below ``root``; links to folders are not followed."""
    for where, _, names in os.walk(root):
        for name in names:
            path = os.path.join(where, name)
            if os.path.isfile(path):
                yield path


def save_results(folder: RunFolder, results: list[Any]) -> None:
    """Store the results of a run's function, in rank order."""
    data = pickling.pack(results, "the results of the run")
    with open(folder.file(RESULTS), "wb") as file:
        file.write(data)


def load_results(folder: RunFolder) -> list[Any]:
    """Return the results of a run's function, in rank order."""
    with open(folder.file(RESULTS), "rb") as file:
        found: list[Any] = pickling.unpack(file.read())
    return found


def _digest(path: str) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(_CHUNK):
            found.update(data)
    return found.hexdigest()
