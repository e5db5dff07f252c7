"""Files that a program adds to its run: artifacts and figures."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from farandole.job.runs.folder import RunFolder, make_private
from farandole.job.tracking.values import check_name

Save = Callable[[str], Any]


def inside(name: str) -> str:
    """Return the normalized name of an output. Raises ValueError if it leads out of outputs/."""
    found = os.path.normpath(check_name(name, "an artifact"))
    if os.path.isabs(found) or found == ".." or found.startswith("../"):
        raise ValueError(f"the artifact's name {name!r} leads out of the run's outputs")
    return found


def add(folder: RunFolder, path: str, name: str) -> int:
    """Copy a file, or a folder with its files, to ``outputs/<name>``; return its size in bytes.

    A file that is already in the outputs is not copied. Raises ValueError if ``path`` does not
    exist.
    """
    outputs = os.path.realpath(folder.folder("outputs"))
    if os.path.isdir(path):
        return sum(
            add(folder, each, os.path.join(name, os.path.relpath(each, path)))
            for each in _files(path)
        )
    if not os.path.isfile(path):
        raise ValueError(f"the artifact {path!r} does not exist (in {os.getcwd()})")
    target = os.path.join(outputs, name)
    if os.path.realpath(path) != os.path.realpath(target):
        # imported here because most programs copy no files
        import shutil

        write(target, lambda temporary: shutil.copyfile(path, temporary))
    return os.path.getsize(target)


def write(target: str, save: Save) -> None:
    """Write a file atomically. ``save`` gets a temporary path and writes the file there."""
    where, name = os.path.split(target)
    make_private(where)
    # The temporary name keeps the extension, from which many writers derive the format.
    temporary = os.path.join(where, f".{os.getpid()}-{name}")
    try:
        save(temporary)
        os.chmod(temporary, 0o600)
        os.replace(temporary, target)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def figure_writer(figure: Any) -> tuple[str, Save]:
    """Return the extension of a figure's file and a function that writes it.

    ``figure`` is a figure of Matplotlib, Plotly or Altair, an image of PIL, or the bytes of a PNG
    file. Raises TypeError for other objects.
    """
    if isinstance(figure, (bytes, bytearray)):
        return ".png", lambda path: _write_bytes(path, bytes(figure))
    if hasattr(figure, "savefig"):
        return ".png", figure.savefig
    if hasattr(figure, "get_figure"):  # axes
        return ".png", figure.get_figure().savefig
    if hasattr(figure, "write_html"):
        return ".html", figure.write_html
    if hasattr(figure, "to_html"):
        return ".html", lambda path: _write_bytes(path, figure.to_html().encode())
    if hasattr(figure, "save"):
        return ".png", figure.save
    raise TypeError(
        f"a figure must be one of Matplotlib, Plotly, Altair or PIL, or the bytes of a PNG file,"
        f" not {type(figure).__name__}"
    )


def _write_bytes(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def _files(root: str) -> list[str]:
    return [
        os.path.join(where, name) for where, _, names in os.walk(root) for name in sorted(names)
    ]
