"""Farandole as an archive, for the executors of a Spark application."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from farandole.job.spark import session

ARCHIVE = "farandole-inference.zip"
# by application: the folder of its archive, which executors fetch when they start
_folders: dict[str, Any] = {}


def sent_archive() -> str:
    """Return the name of an archive of Farandole that Spark sends to remote executors."""
    context = session.context()
    if context is None or context.master.startswith("local"):
        return ""
    if context.applicationId not in _folders:
        from farandole.job.launch.agents.bundle import archive

        folder = tempfile.TemporaryDirectory(prefix="farandole-spark-")
        path = os.path.join(folder.name, ARCHIVE)
        with open(path, "wb") as file:
            file.write(archive())
        context.addFile(path)
        _folders[context.applicationId] = folder
    return ARCHIVE
