"""A summary of the records of a run's ranks, as plain data."""

from __future__ import annotations

import os
from typing import Any

from farandole.job.runs.folder import RunFolder

_EVENTS = "events.out.tfevents"  # the prefix of TensorBoard's file names
_PLACES = ("outputs", "tensorboard", "work")


def summary(folder: RunFolder) -> dict[str, Any]:
    """Return the metrics and parameters of rank 0, and the findings of all ranks.

    - ``metrics``: The last value of each metric.
    - ``automatic``: The last value of each automatic metric.
    - ``logged_parameters``: Parameters recorded by the program.
    - ``findings``: The texts of the checks' findings.
    - ``tensorboard``: Folders with TensorBoard event files.
    """
    found: dict[str, Any] = {
        "metrics": {},
        "automatic": {},
        "logged_parameters": {},
        "findings": [],
        "tensorboard": event_folders(folder),
    }
    if os.path.isdir(folder.file("metrics")):
        # imported here because importing numpy takes longer than the rest of a command
        from farandole.jobs import metrics

        found["metrics"] = metrics.last_values(folder)
        found["automatic"] = metrics.last_values(folder, automatic=True)
        found["logged_parameters"] = metrics.params(folder)
        texts = {
            f"{each['text']} [{each['code']}]": None
            for rank in metrics.ranks(folder)
            for each in metrics.logged(folder, "finding", rank)
        }
        found["findings"] = list(texts)
    return found


def event_folders(folder: RunFolder) -> list[str]:
    """Return the run's folders with TensorBoard event files of the program or of the mirror."""
    return sorted(
        where
        for place in _PLACES
        for where, _, names in os.walk(folder.file(place))
        if any(name.startswith(_EVENTS) for name in names)
    )
