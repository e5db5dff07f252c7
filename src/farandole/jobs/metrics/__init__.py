"""Reads the metrics that the ranks of a run have recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from farandole.job.runs.folder import RunFolder
from farandole.job.runs.journal import records


def names(folder: RunFolder, rank: int = 0) -> list[str]:
    """Return the names of a rank's metrics, sorted."""
    return sorted({name for record in _points(folder, rank) for name in record["values"]})


def series(folder: RunFolder, name: str, rank: int = 0) -> tuple[Any, Any, Any]:
    """Return one metric of a rank: arrays of steps (int64), times in seconds since 1970 and values
    (float64).
    """
    points = [record for record in _points(folder, rank) if name in record["values"]]
    return (
        np.array([record["step"] for record in points], np.int64),
        np.array([record["time"] for record in points], np.float64),
        np.array([record["values"][name] for record in points], np.float64),
    )


def last_values(folder: RunFolder, rank: int = 0) -> dict[str, float]:
    """Return the last value of each metric of a rank."""
    found: dict[str, float] = {}
    for record in _points(folder, rank):
        found.update(record["values"])
    return found


def _points(folder: RunFolder, rank: int) -> Iterator[dict[str, Any]]:
    for record in records(folder.metrics_of(rank)):
        if isinstance(record, dict) and "values" in record:
            yield record
