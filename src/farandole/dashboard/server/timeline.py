"""The timelines of a run's ranks, merged into one."""

from __future__ import annotations

import json
import os
from typing import Any

from farandole.core.observe import timeline
from farandole.dashboard.server import files
from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder

_MOST_BYTES = 4 << 20  # all files together; parsed JSON takes ten times the memory
_HEAD = 4096
_PLACES = ("outputs", "work")


def events(folder: RunFolder) -> dict[str, Any]:
    """Return the timeline of a run.

    - ``files``: Paths of the ranks' timelines, relative to the run's folder.
    - ``events``: The events of all ranks on one clock, in the Trace Event Format.
    - ``complete``: Whether ``events`` has all events.
    """
    names = found(folder)
    parts, complete = [], True
    for name in names:
        with files.opened(folder, name) as file:
            size = os.fstat(file.fileno()).st_size
            limit = _MOST_BYTES // len(names)
            parts.append(_parsed(file.read(limit)))
            complete &= size <= limit
    usable = [part for part in parts if part and "farandole" in part[0]]
    try:
        merged = timeline.merge(usable) if usable else []
    except (SettingsError, KeyError, TypeError):  # several jobs of one run: show the first rank
        merged = list(usable[0])
    return {"files": names, "events": merged, "complete": complete}


def found(folder: RunFolder) -> list[str]:
    """Return the paths of the run's timelines, relative to its folder."""
    names = []
    for place in _PLACES:
        for where, _, each in os.walk(folder.file(place)):
            names += [os.path.relpath(os.path.join(where, name), folder.path) for name in each]
    return sorted(name for name in names if ".json" in name and _is_timeline(folder, name))


def _is_timeline(folder: RunFolder, name: str) -> bool:
    try:
        with files.opened(folder, name) as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    return head.lstrip().startswith(b"[") and b'"farandole"' in head


def _parsed(data: bytes) -> list[dict[str, Any]]:
    """Return the events of a timeline with a possibly missing end."""
    text = data.decode("utf-8", "replace")
    for candidate in (text, text.rpartition("},\n")[0] + "}]"):
        try:
            parsed = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return parsed if isinstance(parsed, list) else []
    return []
