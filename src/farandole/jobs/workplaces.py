"""The working directories of a run's nodes: a copy of the source and a temporary folder each."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator

from farandole.errors import counted
from farandole.job.runs.folder import RunFolder
from farandole.jobs.details import readable_size
from farandole.jobs.snapshot.store import clone_tree

_SHOWN = 5  # names in a message


def prepare(folder: RunFolder, nodes: int) -> None:
    """Create the working directories, each with a link ``outputs`` to the run's outputs.

    Files of the source named ``outputs/...`` are copied to the run's outputs. Directories of an
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


def lost_files(folder: RunFolder) -> list[str]:
    """Return messages about files that are lost with the working directories: files written outside
    of ``outputs``, and files in ``TMPDIR``.
    """
    snapshot = folder.file("snapshot")
    written: set[str] = set()
    temporary, size = 0, 0
    for node in sorted(_listed(folder.file("work"))):
        place = folder.file("work", node, "source")
        for path in _files(place):
            name = os.path.relpath(path, place)
            if not os.path.lexists(os.path.join(snapshot, name)):
                written.add(name)
        for path in _files(folder.file("work", node, "tmp")):
            temporary += 1
            size += os.lstat(path).st_size
    messages = []
    if written:
        more = f" and {len(written) - _SHOWN} more" if len(written) > _SHOWN else ""
        messages.append(
            f"not kept, because only outputs/ is: {', '.join(sorted(written)[:_SHOWN])}{more};"
            " write to outputs/ in the working directory"
        )
    if temporary:
        messages.append(
            f"left in TMPDIR and deleted: {counted(temporary, 'file')}, {readable_size(size)}"
        )
    return messages


def _files(root: str) -> Iterator[str]:
    for where, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            yield os.path.join(where, name)


def _listed(path: str) -> list[str]:
    try:
        return [name for name in os.listdir(path) if name.startswith("node-")]
    except FileNotFoundError:
        return []


def discard(folder: RunFolder) -> None:
    """Remove the working directories, including folders made read-only by a program."""
    work = folder.file("work")
    for where, folders, _ in os.walk(work):
        for name in folders:
            path = os.path.join(where, name)
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(work, ignore_errors=True)
