"""The list of runs that have not ended: one empty file per run, named by its number and id.

The list only saves the supervisor a scan of all folders. Each supervisor rebuilds it from the
folders at its start.
"""

from __future__ import annotations

import contextlib
import os

from farandole.errors import RunError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome


def add(home: RunsHome, folder: RunFolder) -> None:
    """Add a run, unless it is already on the list."""
    path = os.path.join(home.folder("queue"), _name(folder))
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _name(folder: RunFolder) -> str:
    number = int(folder.submitted()["number"])
    experiment = os.path.basename(os.path.dirname(folder.path))
    return f"{number:012d} {experiment} {folder.run_id}"


def entries(home: RunsHome) -> list[RunFolder]:
    """Return the folders of the runs on the list, in the order of submission."""
    try:
        names = sorted(os.listdir(os.path.join(home.path, "queue")))
    except FileNotFoundError:
        return []
    parts = (name.split(" ") for name in names)
    return [
        RunFolder(os.path.join(home.runs, part[1], part[2])) for part in parts if len(part) == 3
    ]


def remove(home: RunsHome, folder: RunFolder) -> None:
    """Remove a run from the list."""
    queue = os.path.join(home.path, "queue")
    try:
        names = [_name(folder)]
    except (RunError, KeyError, TypeError, ValueError):  # the folder is missing or damaged
        if not os.path.isdir(queue):
            return
        names = [name for name in os.listdir(queue) if name.endswith(f" {folder.run_id}")]
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(queue, name))
