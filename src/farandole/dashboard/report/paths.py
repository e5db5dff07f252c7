"""Paths in texts of a report: a reader elsewhere cannot use them, and they tell about the host."""

from __future__ import annotations

import re

from farandole.job.runs.folder import RunFolder

# A path of at least two names, not within a URL, a name or a relative path.
_PATH = re.compile(r"(?<![\w.:/~@%+-])(?:~|/[\w.@%+~-]+)/(?:[\w.@%+~-]+/)*[\w.@%+~-]*")


def without_paths(text: str, folder: RunFolder) -> str:
    """Return ``text`` with paths inside the run's folder relative to it, and ``.../name`` in place
    of other absolute paths.
    """
    text = text.replace(f"{folder.path}/", "").replace(folder.path, ".")
    return _PATH.sub(_shortened, text)


def _shortened(match: re.Match[str]) -> str:
    return f".../{match[0].rstrip('/').rpartition('/')[2]}"
