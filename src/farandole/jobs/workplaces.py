"""The working directories of a run's nodes: a copy of the source and a temporary folder each."""

from __future__ import annotations

import os
import shutil
import stat

from farandole.job.runs.folder import RunFolder
from farandole.jobs.snapshot.store import clone_tree


def prepare(folder: RunFolder, nodes: int) -> None:
    """Make the working directories, each with ``outputs`` as a link to the run's outputs.

    Files named ``outputs/...`` of the source are copied to the run's outputs. Directories of an
    earlier attempt are replaced.
    """
    outputs = folder.folder("outputs")
    source = folder.file("snapshot")
    discard(folder)
    for node in range(nodes):
        work = folder.folder("work", f"node-{node}")
        os.makedirs(os.path.join(work, "tmp"), mode=0o700)
        place = os.path.join(work, "source")
        if os.path.isdir(source):
            clone_tree(source, place)
        else:
            os.mkdir(place, 0o700)
        own = os.path.join(place, "outputs")
        if os.path.isdir(own) and not os.path.islink(own):
            if not os.listdir(outputs):
                clone_tree(own, outputs)
            shutil.rmtree(own)
        if not os.path.lexists(own):
            os.symlink(outputs, own)


def discard(folder: RunFolder) -> None:
    """Remove the working directories, also where a program made folders read-only."""
    work = folder.file("work")
    for where, folders, _ in os.walk(work):
        for name in folders:
            path = os.path.join(where, name)
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(work, ignore_errors=True)
