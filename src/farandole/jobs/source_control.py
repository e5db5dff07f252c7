"""The state of the source in git at submission: commit, branch, remote and uncommitted changes."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

_LARGEST_DIFF = 10 << 20  # bytes


def facts(source: str, diff_path: str) -> dict[str, Any]:
    """Return ``{"git": {...}}`` for a source in a git repository, otherwise an empty dict.

    Uncommitted changes of tracked files are written to ``diff_path``.
    """
    if not source or not _in_repository(source):
        return {}
    commit = _git(source, "rev-parse", "HEAD")
    if commit is None:
        return {}
    diff = _git(source, "diff", "HEAD", "--", ".") or ""
    if diff:
        with open(diff_path, "w", encoding="utf-8") as file:
            file.write(diff[:_LARGEST_DIFF])
    status = _git(source, "status", "--porcelain", "--untracked-files=no", "--", ".") or ""
    return {
        "git": {
            "commit": commit.strip(),
            "branch": (_git(source, "rev-parse", "--abbrev-ref", "HEAD") or "").strip(),
            "remote": without_secrets(
                (_git(source, "config", "--get", "remote.origin.url") or "").strip()
            ),
            "dirty": bool(status),
        }
    }


def without_secrets(url: str) -> str:
    """Return a URL without user name and password."""
    return re.sub(r"(?<=://)[^/@]+@", "", url)


def _in_repository(source: str) -> bool:
    folder = os.path.abspath(source)
    while True:
        if os.path.exists(os.path.join(folder, ".git")):
            return True
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent


def _git(folder: str, *arguments: str) -> str | None:
    """Return git's output; None if git is missing or fails."""
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments],
            capture_output=True,
            timeout=10,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")
