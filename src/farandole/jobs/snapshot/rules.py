"""Rules that exclude files from a snapshot.

The rules are in the source's ``.amlignore``, otherwise in its ``.gitignore`` files, both in git's
syntax. Without these files, a default list excludes folders that are not part of a program.
Repositories, byte code and virtual environments are always excluded, because a run cannot use a
copy of them.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from typing import Any, Protocol

from farandole.base.optional import require

AML, GIT = ".amlignore", ".gitignore"
_ALWAYS = {".git", ".hg", ".svn", "__pycache__", ".ipynb_checkpoints", ".farandole"}
_DEFAULT = {
    *(".venv", "venv", "node_modules", ".tox", ".nox", ".eggs"),
    *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".cache", ".idea", ".vscode"),
    *("checkpoints", "wandb", "mlruns", "lightning_logs", ".DS_Store"),
}
_DEFAULT_PATTERNS = ("*.egg-info", "*.pyc", "*.swp", "*~", ".#*")


class IgnoreRules(Protocol):
    """Rules for the entries of a source folder."""

    name: str

    def enter(self, folder: str, path: str) -> None:
        """Read the rules in a folder before it is scanned.

        ``folder`` is its name relative to the source; empty for the source itself.
        """

    def decision(self, name: str, folder: bool) -> bool | None:
        """Return True to exclude an entry, False to include it by an explicit rule, or None.

        ``name`` is relative to the source.
        """


def rules_of(source: str) -> IgnoreRules:
    """Return the rules of a source folder.

    Raises ImportError, naming the package to install, if an ignore file needs pathspec.
    """
    for name in (AML, GIT):
        if os.path.isfile(os.path.join(source, name)):
            return _FileRules(name, nested=name == GIT)
    return _DefaultRules()


class _Everything:
    """Rules that exclude no files."""

    name = "none"

    def enter(self, folder: str, path: str) -> None:
        pass

    def decision(self, name: str, folder: bool) -> bool | None:
        return False


EVERYTHING: IgnoreRules = _Everything()


class _DefaultRules:
    """The rules for a source without an ignore file."""

    name = "default"

    def enter(self, folder: str, path: str) -> None:
        pass

    def decision(self, name: str, folder: bool) -> bool | None:
        base = os.path.basename(name)
        if base in _ALWAYS or base in _DEFAULT:
            return True
        return any(fnmatch.fnmatchcase(base, each) for each in _DEFAULT_PATTERNS) or None


class _FileRules:
    """The rules of ignore files. Rules of a deeper folder override the rules above it."""

    def __init__(self, name: str, *, nested: bool) -> None:
        self.name = name
        self._nested = nested
        self._specs: dict[str, Any] = {}

    def enter(self, folder: str, path: str) -> None:
        if folder and not self._nested:
            return
        try:
            with open(os.path.join(path, self.name), encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except (FileNotFoundError, IsADirectoryError):
            return
        self._specs[folder] = _compiled(lines, self.name)

    def decision(self, name: str, folder: bool) -> bool | None:
        if os.path.basename(name) in _ALWAYS or name.endswith(".pyc"):
            return True
        parent = name
        while parent:
            parent = os.path.dirname(parent)
            spec = self._specs.get(parent)
            if spec is not None:
                inner = os.path.relpath(name, parent) if parent else name
                found = spec.check_file(inner + "/" if folder else inner).include
                if found is not None:
                    return bool(found)
        return None


def _compiled(lines: Sequence[str], name: str) -> Any:
    pathspec = require("pathspec", f"reading {name}")
    return pathspec.GitIgnoreSpec.from_lines(lines)


def is_virtual_environment(path: str) -> bool:
    """Return whether a folder is a virtual environment, which works only at its original path."""
    return os.path.isfile(os.path.join(path, "pyvenv.cfg"))
