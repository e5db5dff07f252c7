"""Copies the source of a run into its folder."""

from __future__ import annotations

import hashlib
import os
import shutil


def take(source: str, into: str) -> str:
    """Copy the source folder and return a digest of its content."""
    shutil.copytree(source, into, ignore=shutil.ignore_patterns(".git", "__pycache__", ".venv"))
    found = hashlib.sha256()
    for where, folders, names in os.walk(into):
        folders.sort()
        for name in sorted(names):
            found.update(os.path.relpath(os.path.join(where, name), into).encode())
    return found.hexdigest()
