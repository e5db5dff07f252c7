"""Data for programs of ``azureml``."""

from __future__ import annotations

import zipfile
from pathlib import Path


def write(path: Path, text: str) -> Path:
    """Write a text file with its folder and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def zipped(path: Path, **files: str) -> Path:
    """Write a zip archive of text files and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path
