"""The place of a run's converted metrics: a folder of the local state, which can be made again."""

from __future__ import annotations

import hashlib
import os
import shutil

from farandole.job.runs.folder import RunFolder, make_private
from farandole.job.runs.home import RunsHome
from farandole.jobs.supervisor.place import state_folder


def column_folder(folder: RunFolder, rank: int) -> str:
    """Return the folder for the columns of a rank, created for this user alone.

    Raises OSError if it cannot be created.
    """
    return make_private(os.path.join(_root(folder), f"rank-{rank}"))


def forget(folder: RunFolder) -> None:
    """Delete the columns of a run; reading its metrics makes them again."""
    shutil.rmtree(_root(folder), ignore_errors=True)


def key(folder: RunFolder) -> str:
    """Return a name for the run's folder at its present place."""
    return hashlib.blake2b(os.path.realpath(folder.path).encode(), digest_size=10).hexdigest()


def _root(folder: RunFolder) -> str:
    return os.path.join(state_folder(RunsHome()), "columns", key(folder))
