"""The environment variables of a submission, for its runner.

They may hold secrets, so they are kept outside the run's folder, readable by this user alone, and
only until the run has ended.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from farandole.job.runs.folder import RunFolder, read_json, write_json
from farandole.job.runs.home import RunsHome


def save(home: RunsHome, folder: RunFolder, further: Mapping[str, str] = {}) -> None:
    """Keep this process's variables, and ``further`` ones, for the run."""
    write_json(_path(home, folder), {**os.environ, **further})


def load(home: RunsHome, folder: RunFolder) -> dict[str, str]:
    """Return the run's variables; this process's where none are kept."""
    found = read_json(_path(home, folder))
    return dict(os.environ) if found is None else found


def discard(home: RunsHome, folder: RunFolder) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(home.path, "variables", f"{folder.run_id}.json"))


def _path(home: RunsHome, folder: RunFolder) -> str:
    return os.path.join(home.folder("variables"), f"{folder.run_id}.json")
