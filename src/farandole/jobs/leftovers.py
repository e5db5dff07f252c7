"""Cleanup after killed submissions: unfinished folders, and variables without a run."""

from __future__ import annotations

import contextlib
import os
import shutil
import time

from farandole.job.runs.home import RunsHome

OLD = 3600.0  # seconds after which an unfinished submission counts as killed


def remove(home: RunsHome) -> None:
    """Remove unfinished folders, and variables without a run, that are older than an hour."""
    for experiment in home.experiments():
        parent = os.path.join(home.runs, experiment)
        for name in os.listdir(parent):
            if name.startswith(".new-") and _is_old(os.path.join(parent, name)):
                shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
    variables = os.path.join(home.path, "variables")
    if not os.path.isdir(variables):
        return
    for name in os.listdir(variables):
        path = os.path.join(variables, name)
        if _is_old(path) and home.find(name.removesuffix(".json")) is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _is_old(path: str) -> bool:
    try:
        return time.time() - os.lstat(path).st_mtime > OLD
    except FileNotFoundError:
        return False
