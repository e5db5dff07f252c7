"""Curves of metrics, reduced to the number of points that a screen can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from farandole.job.runs.folder import RunFolder
from farandole.jobs.metrics.columns import RankColumns

AXES = ("step", "time")
MOST_POINTS = 20_000


class DecimatedCurve(NamedTuple):
    """A reduced curve: arrays of shape ``[buckets]``. A bucket holds neighbouring points.

    - ``x``, ``y``: The last point of each bucket.
    - ``low``, ``high``: The smallest and largest finite value of each bucket, NaN without one. Both
      arrays are empty if each bucket is a single point.
    - ``total``: The number of points before the reduction.
    - ``not_finite``: The number of NaN and infinite values before the reduction.
    """

    x: Any
    y: Any
    low: Any
    high: Any
    total: int
    not_finite: int


def decimate(x: Any, y: Any, points: int) -> DecimatedCurve:
    """Reduce a curve to at most ``points`` buckets with nearly equal numbers of points.

    ``x`` (ascending) and ``y`` have shape ``[n]``. No extreme is lost: each bucket keeps its
    smallest and largest value.
    """
    finite = np.isfinite(y)
    total, missing = len(x), len(x) - int(np.count_nonzero(finite))
    if total <= points:
        return DecimatedCurve(x, y, y[:0], y[:0], total, missing)
    bounds = np.arange(points + 1) * total // points
    starts, last = bounds[:-1], bounds[1:] - 1
    shown = np.where(finite, y, np.nan) if missing else y
    low, high = np.fmin.reduceat(shown, starts), np.fmax.reduceat(shown, starts)
    return DecimatedCurve(x[last], y[last], low, high, total, missing)


def within(x: Any, y: Any, begin: float | None, end: float | None) -> tuple[Any, Any]:
    """Return the points with ``begin <= x <= end``, sorted by x, and one additional point on each
    side.

    With the additional points, lines reach the edges of a chart. ``x`` and ``y`` have shape
    ``[n]``; None means no limit.
    """
    if len(x) > 1 and np.any(x[1:] < x[:-1]):
        order = np.argsort(x, kind="stable")
        x, y = x[order], y[order]
    first = 0 if begin is None else max(0, int(np.searchsorted(x, begin, "left")) - 1)
    last = len(x) if end is None else int(np.searchsorted(x, end, "right")) + 1
    return x[first:last], y[first:last]


class CurveRequest(NamedTuple):
    """A request for curves.

    - ``names``: Names of metrics; empty for all metrics of the program.
    - ``ranks``: Numbers of ranks.
    - ``axis``: ``step`` or ``time`` (seconds since 1970).
    - ``begin``, ``end``: Limits on the axis; None for no limit.
    - ``points``: The maximum number of points of a curve.
    """

    names: Sequence[str]
    ranks: Sequence[int]
    axis: str = "step"
    begin: float | None = None
    end: float | None = None
    points: int = 2000


def curves(folder: RunFolder, request: CurveRequest) -> list[dict[str, Any]]:
    """Return the curves of a run's metrics, in the order of ranks and names.

    Each is a dict with ``run``, ``name``, ``rank`` and the data of ``plain``.
    """
    found = []
    for rank in request.ranks:
        columns = RankColumns.of(folder, rank)
        names = request.names or sorted(
            name for name, each in columns.index.metrics.items() if not each.automatic
        )
        for name in names:
            steps, times, values = columns.series(name)
            x = steps if request.axis == "step" else times
            curve = decimate(*within(x, values, request.begin, request.end), request.points)
            found.append({"run": folder.run_id, "name": name, "rank": rank, **plain(curve)})
    return found


def plain(curve: DecimatedCurve) -> dict[str, Any]:
    """Return a curve as lists of numbers, with None for NaN and infinity."""
    return {
        "x": curve.x.tolist(),
        "y": numbers(curve.y),
        "min": numbers(curve.low),
        "max": numbers(curve.high),
        "total": curve.total,
        "not_finite": curve.not_finite,
    }


def numbers(values: Any) -> list[float | None]:
    """Return an array as a list, with None for NaN and infinity, which JSON lacks."""
    found: list[float | None] = values.tolist()
    finite = np.isfinite(values)
    if not finite.all():
        for place in np.flatnonzero(~finite).tolist():
            found[place] = None
    return found
