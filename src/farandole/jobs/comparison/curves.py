"""Curves of several runs over steps and over time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from farandole.job.runs.folder import RunFolder
from farandole.jobs import metrics

POINTS = 500  # maximum per curve


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
        """Return the curve with at most ``points`` points; NaN and infinity become None.

        The first and the last point are kept, so ``points`` is at least 2. Each group of
        neighbouring points in between keeps its smallest and its largest finite value.
        """
        kept = _extremes(self.values, points)
        values = self.values[kept]
        return {
            "step": self.steps[kept].tolist(),
            "seconds": np.round(self.seconds[kept], 3).tolist(),
            "value": [float(each) if np.isfinite(each) else None for each in values],
        }


def common_metrics(folders: Sequence[RunFolder]) -> list[str]:
    """Return the sorted names of the metrics recorded by rank 0 of every run."""
    found = [set(metrics.names(folder)) for folder in folders]
    return sorted(set.intersection(*found)) if found else []


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
    groups = max(0, points - 2) // 2
    bounds = np.linspace(1, count - 1, groups + 1).astype(int)
    finite = np.isfinite(values)
    low, high = np.where(finite, values, np.inf), np.where(finite, values, -np.inf)
    kept = [
        begin + int(place)
        for begin, end in itertools.pairwise(bounds)
        for place in (np.argmin(low[begin:end]), np.argmax(high[begin:end]))
    ]
    return np.unique([*kept, 0, count - 1])
