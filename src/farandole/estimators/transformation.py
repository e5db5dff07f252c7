"""The user's ``transformation_fn``, applied to the rows of a batch."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.optional import require
from farandole.data.parquet.numeric_cast import cast, is_number, rule
from farandole.errors import DataError, counted, did_you_mean
from farandole.estimators.spec import Columns

if TYPE_CHECKING:
    from farandole.base.types import Array

_NUMBERS = "biufc"  # kinds of dtypes
_SHOWN = 60  # characters of a value in a message


def transformed(arrays: Mapping[str, Array], columns: Columns) -> dict[str, Array]:
    """Apply ``columns.transform`` to a batch; return the columns in the declared dtypes and shapes,
    without the removed ones.

    Raises DataError if the function fails, if a row lacks a column, and for values whose shapes
    differ from each other or from the declared shape.
    """
    changed = _of_rows(arrays, columns) if columns.by_row else _of_frame(arrays, columns)
    edited = {str(field[0]): field for field in columns.edited}
    known = {
        "edit": ({*edited} - {*columns.removed}, changed),
        "removed": (columns.removed, {**arrays, **changed}),
    }
    for option, (names, existing) in known.items():
        if unknown := [name for name in names if name not in existing]:
            raise DataError(
                f"transformation_{option}_fields names {unknown[0]!r}, but the rows have no such"
                f" column (they have {', '.join(existing)}){did_you_mean(unknown[0], existing)}"
            )
    used = None if columns.by_name else {*columns.all, *edited}
    return {
        name: _texts(values)
        if name in columns.texts and isinstance(next(iter(values), None), str)
        else _array(name, values, edited.get(name))
        for name, values in changed.items()
        if name not in columns.removed and (used is None or name in used)
    }


def _of_frame(arrays: Mapping[str, Array], columns: Columns) -> dict[str, Any]:
    """Call the function with all rows as a pandas DataFrame, in which arrays are objects."""
    pandas = require("pandas", "transformation_fn")
    frame = pandas.DataFrame(
        {
            name: [_own(value) for value in array]
            if array.ndim > 1 or array.dtype == object
            else array
            for name, array in arrays.items()
        }
    )
    rows = len(frame)
    changed = _called(columns, frame, f"a DataFrame of {counted(rows, 'row')}")
    if not isinstance(changed, pandas.DataFrame):
        raise DataError(
            f"transformation_fn returns a {type(changed).__name__}, but must return a DataFrame, or"
            " change its argument and return nothing. In farandole.estimators it gets a pandas"
            " DataFrame of many rows, in horovod.spark one row as a dict"
        )
    if len(changed) != rows:
        raise DataError(
            f"transformation_fn makes {counted(len(changed), 'row')} of {rows}: it may change"
            " columns, not the number of rows; leave rows out of the DataFrame before fit()"
        )
    return {str(name): changed[name].to_numpy() for name in changed.columns}


def _of_rows(arrays: Mapping[str, Array], columns: Columns) -> dict[str, Any]:
    """Call the function with each row as a dict of values by column."""
    rows: list[dict[str, Any]] = []
    for index in range(len(next(iter(arrays.values())))):
        row = {name: _own(array[index]) for name, array in arrays.items()}
        changed = _called(columns, row, f"row {index} of a batch")
        if not isinstance(changed, Mapping):
            raise DataError(
                f"transformation_fn returns a {type(changed).__name__} for row {index} of a batch,"
                " but must return a dict of values by column, or change its argument and return"
                " nothing. In horovod.spark it gets one row as a dict, in farandole.estimators a"
                " pandas DataFrame of many rows"
            )
        rows.append({str(name): value for name, value in changed.items()})
    names = dict.fromkeys(name for row in rows for name in row)
    used = [name for name in names if _is_used(name, columns)]
    for index, row in enumerate(rows):
        for name in used:
            if name not in row:
                raise DataError(
                    f"transformation_fn leaves out {name!r} in row {index} of a batch"
                    f" ({_described({key: array[index] for key, array in arrays.items()})}), but"
                    " returns it for other rows: values of different rows would be paired. Return"
                    f" it for all rows, or name it in transformation_removed_fields=[{name!r}]"
                )
    # other columns, which are only named in messages, may be missing from a row
    return {name: [row.get(name) for row in rows] for name in names}


def _called(columns: Columns, argument: Any, what: str) -> Any:
    """Return the function's result, or its argument if it changes that in place and returns
    nothing.
    """
    assert columns.transform is not None
    try:
        result = columns.transform(argument)
    except Exception as error:
        raise DataError(
            f"transformation_fn failed on {what}: {type(error).__name__}: {error}. In horovod.spark"
            " it gets one row, a dict of values by column, and returns one; in"
            " farandole.estimators it gets and returns a pandas DataFrame of many rows"
        ) from error
    return argument if result is None else result


def _is_used(name: str, columns: Columns) -> bool:
    return name not in columns.removed and (columns.by_name or name in columns.all)


def _own(value: Any) -> Any:
    """Return a copy that the function may change: the original may be read-only, and is read again
    in the next epoch.
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


def _described(row: Mapping[str, Any]) -> str:
    """Describe a row of the data, so that the user recognizes it."""
    texts = ((name, repr(value).replace("\n", " ")) for name, value in row.items())
    return ", ".join(
        f"{name}={text if len(text) <= _SHOWN else f'{text[:_SHOWN]}...'}" for name, text in texts
    )


def _array(name: str, values: Any, field: Sequence[Any] | None) -> Array:
    """Return a column's values as one array, in the dtype and shape of ``field`` if it is given:
    (name, dtype, shape, nullable).
    """
    array = _stacked(name, values)
    if field is None:
        return array
    _, dtype, shape, *_ = field
    if dtype is not None:
        array = _cast(name, array, dtype)
    return array if shape is None else _shaped(name, array, tuple(shape))


def _texts(values: Any) -> Array:
    texts = np.empty(len(values), object)
    texts[:] = list(values)
    return texts


def _stacked(name: str, values: Any) -> Array:
    if isinstance(values, np.ndarray) and values.dtype.kind in _NUMBERS:
        return values
    arrays: list[Array] = []
    for index, value in enumerate(values):
        try:
            array = np.asarray(value)
        except ValueError:  # lists of different lengths
            array = np.asarray(None)
        if array.dtype.kind not in _NUMBERS:
            raise DataError(
                f"transformation_fn returns {value!r:.{_SHOWN}} ({type(value).__name__}) for"
                f" {name!r} in row {index} of a batch, which does not become an array of numbers:"
                " return a number, or an array or list of numbers; or, if the model does not take"
                f" the column, give transformation_removed_fields=[{name!r}]"
            )
        if arrays and array.shape != arrays[0].shape:
            raise DataError(
                f"transformation_fn returns values of different shapes for {name!r}:"
                f" {arrays[0].shape} in row 0 of a batch, {array.shape} in row {index}. Pad or"
                " resize them to one shape"
            )
        arrays.append(array)
    return np.stack(arrays) if arrays else np.empty(0, np.float32)


def _cast(name: str, array: Array, dtype: Any) -> Array:
    wanted = np.dtype(dtype)
    if not (is_number(array.dtype) and is_number(wanted)):
        return array.astype(wanted, copy=False)
    converted, misfit = cast(array, wanted.name)
    if misfit >= 0:
        raise DataError(
            f"transformation_edit_fields declares {name!r} as {wanted}, and transformation_fn"
            f" returns {array.reshape(-1)[misfit]} for it: {rule(wanted.name)}. Round it in"
            " transformation_fn, or declare another dtype"
        )
    return converted


def _shaped(name: str, array: Array, shape: tuple[int | None, ...]) -> Array:
    """Return rows in the declared shape, in which None (Petastorm's) and -1 mean any length."""
    own, known = array.shape[1:], [length for length in shape if length not in (None, -1)]
    free = len(shape) - len(known)
    fixed = math.prod(known)
    same = len(own) == len(shape) and all(
        wanted in (None, -1, length) for wanted, length in zip(shape, own, strict=True)
    )
    if same:
        return array
    fits = math.prod(own) == fixed if not free else free == 1 and math.prod(own) % fixed == 0
    if not fits:
        raise DataError(
            f"transformation_edit_fields declares {name!r} with shape {shape}, and"
            f" transformation_fn returns shape {own} for it: {math.prod(own)} numbers a row."
            " Declare the shape that the function returns; None stands for any length"
        )
    return array.reshape(len(array), *(-1 if length is None else length for length in shape))
