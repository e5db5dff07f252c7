"""Records of a run's metrics: numbers are metrics of Farandole, all other values are tables.

Each table has a ``form``, so that ``get_metrics`` returns the values as the program logged them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from farandole.job.runs.folder import RUN_VARIABLE, RunFolder
from farandole.job.tracking import tracker
from farandole.job.tracking.tracker import TABLE, Tracker
from farandole.job.tracking.values import number, plain, table

_FORM = "azureml"  # the kind of a record with the form of a metric
_trackers: dict[str, Tracker] = {}


def tracker_of(folder: RunFolder) -> Tracker:
    """Return the tracker for a run: the rank's own, or one of this process."""
    own = tracker.current() if os.environ.get(RUN_VARIABLE) else None
    if own is not None and own.folder.path == folder.path:
        return own
    if folder.path not in _trackers:
        _trackers[folder.path] = Tracker(folder, 0)
    return _trackers[folder.path]


def close(folder: RunFolder) -> None:
    """Close the file of a run that this process has ended."""
    made = _trackers.pop(folder.path, None)
    if made is not None:
        made.close()


def add_value(folder: RunFolder, name: str, value: Any, step: int | None = None) -> None:
    """Record a number or another single value; ``step``: by default the next number."""
    here = tracker_of(folder)
    try:
        here.scalars({name: number(name, value)}, step)
    except TypeError:
        here.record(TABLE, name=name, columns=[name], rows=[[plain(value)]], form="value")


def add_list(folder: RunFolder, name: str, values: Sequence[Any]) -> None:
    """Record a list of values."""
    here = tracker_of(folder)
    cells = [plain(each) for each in values]
    if cells and all(isinstance(each, (int, float)) for each in cells):
        for each in cells:
            here.scalars({name: float(each)})
        here.record(_FORM, name=name, form="list")
    else:
        here.record(TABLE, name=name, columns=[name], rows=[[each] for each in cells], form="list")


def add_table(folder: RunFolder, name: str, values: Mapping[str, Any], form: str) -> None:
    """Record a row (``form="row"``) or a table of columns (``form="table"``)."""
    single = not any(isinstance(each, (list, tuple)) for each in values.values())
    columns, rows = table(name, [values] if single else _columns(values))
    here = tracker_of(folder)
    here.record(TABLE, name=name, columns=columns, rows=rows, form=form, single=single)


def add_reference(folder: RunFolder, name: str, uri: str) -> None:
    """Record the address of an image or another file."""
    tracker_of(folder).record(TABLE, name=name, columns=[name], rows=[[uri]], form="value")


def values(folder: RunFolder) -> dict[str, Any]:
    """Return the metrics of all ranks by name, in the forms of ``Run.get_metrics``."""
    from farandole.jobs import metrics  # imports numpy, which recording does not need

    timed: dict[str, list[tuple[float, Any]]] = {}
    forms: dict[str, str] = {}
    tables: dict[str, dict[str, Any]] = {}
    for rank in metrics.ranks(folder):
        for name in metrics.names(folder, rank):
            _, times, numbers = metrics.series(folder, name, rank)
            found = zip(times.tolist(), numbers.tolist(), strict=True)
            timed.setdefault(name, []).extend(found)
        for record in metrics.logged(folder, _FORM, rank):
            forms[record["name"]] = record["form"]
        for record in metrics.logged(folder, TABLE, rank):
            form, name = record.get("form", "table"), record["name"]
            forms[name] = form
            if form in ("value", "list"):
                cells = [(record["time"], row[0]) for row in record["rows"]]
                timed.setdefault(name, []).extend(cells)
            else:
                _add_columns(tables.setdefault(name, {}), record)
    found_all: dict[str, Any] = {}
    for name, pairs in timed.items():
        pairs.sort(key=lambda pair: pair[0])
        numbers = [value for _, value in pairs]
        found_all[name] = numbers[0] if len(numbers) == 1 and forms.get(name) != "list" else numbers
    return {**found_all, **tables}


def _add_columns(found: dict[str, Any], record: Mapping[str, Any]) -> None:
    """Add the cells of a record to the columns of its table."""
    as_lists = record.get("form") == "row" or not record.get("single")
    for column, cells in zip(record["columns"], zip(*record["rows"], strict=True), strict=False):
        if as_lists or column in found:
            before = found.get(column, [])
            found[column] = [*(before if isinstance(before, list) else [before]), *cells]
        else:
            found[column] = cells[0]


def _columns(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return columns of equal length; a single value becomes a column of one cell."""
    return {
        name: list(each) if isinstance(each, (list, tuple)) else [each]
        for name, each in values.items()
    }
