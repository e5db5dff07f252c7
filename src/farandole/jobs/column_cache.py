"""The folder of a run's converted metrics, in the local state. It can be rebuilt at any time."""

from __future__ import annotations

import hashlib
import os
import shutil

from farandole.job.runs.folder import RunFolder, make_private
from farandole.job.runs.home import RunsHome
from farandole.jobs.supervisor.place import state_folder


def column_folder(folder: RunFolder, rank: int) -> str:
    """Return the folder for the columns of a rank; create it readable by this user only.

    Raises OSError if it cannot be created.
    """
    return make_private(os.path.join(_root(folder), f"rank-{rank}"))


def forget(folder: RunFolder) -> None:
    """Delete the columns of a run; the next read of its metrics rebuilds them."""
    shutil.rmtree(_root(folder), ignore_errors=True)


def key(folder: RunFolder) -> str:
    """Return a name for the run's folder, derived from its current path."""
    return hashlib.blake2b(os.path.realpath(folder.path).encode(), digest_size=10).hexdigest()


def _root(folder: RunFolder) -> str:
    return os.path.join(state_folder(RunsHome()), "columns", key(folder))
