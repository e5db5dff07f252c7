"""Conversion of a program's values to plain data for records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_CELLS = 100_000  # the largest table in the journal
_PLAIN = (bool, int, float, str, type(None))


def number(name: str, value: Any) -> float | int:
    """Return a metric's value as a Python number.

    ``value`` is a number, or an array or tensor of any framework with one element. A tensor on an
    accelerator is read once it is computed. Raises TypeError for other values.
    """
    kind = type(value)
    if kind is float or kind is int:
        return value  # type: ignore[no-any-return]
    found = _element(value)
    if isinstance(found, bool):
        return int(found)
    if isinstance(found, (int, float)):
        return found
    try:
        return float(found)  # numbers of other classes, such as Decimal
    except (TypeError, ValueError):
        raise TypeError(
            f"the metric {name!r} must be a number or a tensor with one element, not"
            f" {_described(value)}; reduce it first (loss.mean()), or use log_table"
        ) from None


def _element(value: Any) -> Any:
    """Return the only element of an array or tensor; ``value`` itself if it cannot be read."""
    for method in ("item", "asscalar", "numpy"):  # PyTorch, numpy and JAX; MXNet; TensorFlow
        read = getattr(value, method, None)
        if read is None:
            continue
        try:
            found = read()
        except Exception:  # several elements, or a symbol of a traced graph
            return value
        return _element(found) if method == "numpy" else found
    return value


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    return f"a {kind} of shape {tuple(shape)}" if shape else f"{value!r} ({kind})"


def step_number(step: Any) -> int:
    """Return a step as an int. Raises TypeError unless it is a whole number."""
    found = number("step", step)
    if isinstance(found, float) and (not math.isfinite(found) or found != int(found)):
        raise TypeError(f"step={step!r} must be a whole number")
    return int(found)


def check_name(name: Any, what: str) -> str:
    """Return ``name``. Raises TypeError unless it is a non-empty string."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of {what} must be a non-empty string, not {name!r}")
    return name


def flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield parameters by name; parameters in nested mappings as ``outer.inner``.

    Raises TypeError if ``values`` is not a mapping.
    """
    if not isinstance(values, Mapping):
        raise TypeError(
            f"parameters must be a mapping of names to values, not {values!r}; for the options of"
            " argparse use vars(options)"
        )
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", plain(value)


def plain(value: Any) -> Any:
    """Return ``value`` as JSON data: a number, text, bool, None, or a list of these. Other objects
    become text.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    found = _element(value)
    return found if isinstance(found, _PLAIN) else str(value)


def table(name: str, rows: Any) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and the rows of a table.

    ``rows`` is a sequence of mappings, or a mapping of columns of equal length. A cell is None if
    its row lacks the key. Raises TypeError for other objects, and ValueError for columns of unequal
    length or too many cells.
    """
    if isinstance(rows, Mapping):
        columns = [str(key) for key in rows]
        lists = [list(column) for column in rows.values()]
        if len({len(column) for column in lists}) > 1:
            lengths = ", ".join(f"{key}: {len(column)}" for key, column in rows.items())
            raise ValueError(f"the columns of the table {name!r} differ in length ({lengths})")
        cells = [list(row) for row in zip(*lists, strict=True)]
    elif isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        named = [{str(key): value for key, value in row.items()} for row in rows]
        columns = list(dict.fromkeys(key for row in named for key in row))
        cells = [[row.get(key) for key in columns] for row in named]
    else:
        raise TypeError(
            f"the rows of the table {name!r} must be a list of dicts or a dict of columns, not"
            f" {type(rows).__name__}"
        )
    if len(columns) * len(cells) > MOST_CELLS:
        raise ValueError(
            f"the table {name!r} has {len(columns) * len(cells):,} cells, more than {MOST_CELLS:,};"
            " write it to a file and use log_artifact"
        )
    return columns, [[plain(cell) for cell in row] for row in cells]
