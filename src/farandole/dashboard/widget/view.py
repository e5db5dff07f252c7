"""The data of a run's view: a small JSON object, without secrets and paths outside the run."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from farandole.dashboard.server import logs
from farandole.dashboard.server.series import CurveRequest, curves
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.states import RunState
from farandole.jobs import metrics
from farandole.jobs.comparison.equal_value import by_relevance
from farandole.jobs.details import details, readable_duration, readable_time
from farandole.jobs.redaction import redacted_values
from farandole.jobs.summary import summary

MOST_CURVES, POINTS = 6, 240
_LOG_BYTES, _LOG_LINES = 8192, 20


def view_of(folder: RunFolder) -> dict[str, Any]:
    """Return the view's data. Raises RunError if the run's folder is damaged.

    - ``id``, ``state``, ``cause``: As in ``Run.details()``.
    - ``final``: Whether the run has ended.
    - ``facts``: Pairs of a name and a text.
    - ``curves``: Metrics of rank 0, each with ``name``, ``x`` (steps) and ``y``, which has None for
      NaN and infinity.
    - ``log``: The last lines of rank 0's output, or of the preparation's if rank 0 has none.
    - ``findings``: Texts of the checks' findings.
    """
    found = details(folder)
    state = RunState(found["state"])
    facts = [
        ("name", found["name"]),
        ("experiment", found["experiment"]),
        ("command", " ".join(found["command"]) or "a function"),
        ("ranks", f"{found['ranks']} on {found['target']}"),
        ("submitted", readable_time(found["submitted"])),
        ("duration", readable_duration(found["seconds"])),
        ("attempts", str(found["attempts"]) if found["attempts"] > 1 else ""),
        ("outputs", ", ".join(each["path"] for each in found["artifacts"][:5])),
    ]
    data = {
        "id": found["run_id"],
        "state": state.value,
        "final": state.final,
        "cause": found["cause"],
        "facts": [[name, text] for name, text in facts if text],
        "curves": _curves(folder),
        "log": log_tail(folder),
        "findings": summary(folder)["findings"],
    }
    return redacted_values(data, folder.path)


def _curves(folder: RunFolder) -> list[dict[str, Any]]:
    if not os.path.isdir(folder.file("metrics")):
        return []
    names = by_relevance(metrics.names(folder))[:MOST_CURVES]
    if not names:
        return []
    request = CurveRequest(names, [0], points=POINTS)
    return [{name: each[name] for name in ("name", "x", "y")} for each in curves(folder, request)]


def log_tail(folder: RunFolder) -> str:
    """Return the last 20 lines of rank 0's output, or of the preparation's if rank 0 has none."""
    for path in (folder.log_of(0), folder.file("logs", "runner.txt")):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            text = str(logs.piece(file, -_LOG_BYTES, _LOG_BYTES)["text"]).strip("\n")
            if text:
                return "\n".join(text.split("\n")[-_LOG_LINES:])
    return ""
