"""Curves of several runs over steps and over time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from farandole.job.runs.folder import RunFolder
from farandole.jobs import metrics

POINTS = 500  # of a curve, at most
_MOST = 24  # metrics


class RunCurve(NamedTuple):
    """A metric of a run, as arrays of shape ``[n]``.

    - ``steps``: The recorded steps.
    - ``seconds``: The seconds since the start of the run's last attempt.
    - ``values``: The recorded values, which may be NaN or infinite.
    """

    steps: Any
    seconds: Any
    values: Any

    def to_json(self, points: int = POINTS) -> dict[str, list[Any]]:
        """Return the curve with about ``points`` points at most; NaN and infinity become None.

        Each group of neighbouring points keeps its smallest and its largest value.
        """
        kept = _extremes(self.values, points)
        values = self.values[kept]
        return {
            "step": self.steps[kept].tolist(),
            "seconds": np.round(self.seconds[kept], 3).tolist(),
            "value": [float(each) if np.isfinite(each) else None for each in values],
        }


def common_metrics(folders: Sequence[RunFolder]) -> list[str]:
    """Return the names of metrics that rank 0 of every run has recorded: the first 24, sorted."""
    found = [set(metrics.names(folder)) for folder in folders]
    return sorted(set.intersection(*found))[:_MOST] if found else []


def curve(folder: RunFolder, name: str, began: float | None) -> RunCurve:
    """Return a metric of rank 0.

    ``began``: the start of the run's last attempt, in seconds since 1970; None for the time of the
    first value.
    """
    steps, times, values = metrics.series(folder, name)
    zero = began if began is not None else (times[0] if len(times) else 0.0)
    return RunCurve(steps, times - zero, values)


def _extremes(values: Any, points: int) -> Any:
    """Return the indices of the points to keep, in order."""
    count = len(values)
    if count <= points:
        return np.arange(count)
    groups = points // 2
    bounds = np.linspace(0, count, groups + 1).astype(int)
    filled = np.where(np.isfinite(values), values, 0.0)
    kept = [
        begin + int(choose(filled[begin:end]))
        for begin, end in itertools.pairwise(bounds)
        for choose in (np.argmin, np.argmax)
    ]
    return np.unique([*kept, 0, count - 1])
