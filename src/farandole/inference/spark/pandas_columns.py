"""Conversion of columns between pandas and Arrow, because Spark before 4.1 only passes pandas
columns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from farandole.base.optional import require
from farandole.data.parquet.arrow_types import innermost, is_list
from farandole.errors import DataError, SettingsError
from farandole.inference.returns import arrow_type, parse
from farandole.inference.stream import Chunk, PredictOptions

_PURPOSE = "inference"
_INTEGERS = {"tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64"}
INTEGER_LISTS = rf"^(array<)+({'|'.join(_INTEGERS)})>"
_DIGITS = 2.0**53  # above this, floats cannot represent all integers
_DECIMAL = re.compile(r"decimal\(\d+,(\d+)\)")
_STRUCTS = (  # Spark's vectors and images, as structs
    "type tinyint, size int, indices array<int>, values array<double>",
    "origin string, height int, width int, nChannels int, mode int, data binary",
)


def arrow_chunk(columns: Sequence[Any], masked: bool, options: PredictOptions) -> Chunk:
    """Return pandas columns as Arrow columns. ``masked``: whether the same number of columns
    follows, with the types of some rows.
    """
    number = len(columns) // 2 if masked else len(columns)
    kinds = columns[number:] if masked else [None] * number
    names = [*options.inputs, ""]  # a key only occurs in messages
    return [
        _arrow(column, kind, name)
        for column, kind, name in zip(columns[:number], kinds, names, strict=False)
    ]


def _arrow(column: Any, kinds: Any = None, name: str = "") -> Any:
    """Return a pandas column (a Series, or for structs a DataFrame) as an Arrow column.

    ``kinds``: names of its type, by row. ``name``: the name of the model's input. Raises DataError
    for integers that have lost digits.
    """
    pa = require("pyarrow", _PURPOSE)
    if hasattr(column, "columns"):
        return _struct(column)
    if kinds is None or column.dtype.kind != "f":
        array = pa.Array.from_pandas(column)
        kind = _widest(array.type)
        if (pa.types.is_null(kind) or _of_floats(kind)) and (type_name := _type_named(kinds)):
            kind = _named(type_name)
            _check_digits(array, kind, name)
        return array if array.type == kind else array.cast(kind)
    null, whole = kinds.notna().to_numpy(), _INTEGERS.get(_type_named(kinds))
    values = column.to_numpy()
    if whole is not None:
        values = np.where(null, 0, values)
        _check_digits(pa.array(values), pa.type_for_alias(whole), name)
        values = values.astype(whole)
    return pa.array(values, mask=null, from_pandas=False)


def _type_named(kinds: Any) -> str:
    """Return the type named in ``kinds``; "" if there is none."""
    there = None if kinds is None else kinds.first_valid_index()
    return "" if there is None else str(kinds[there])


def _of_floats(kind: Any) -> bool:
    """Return whether an Arrow type is a list of floats."""
    types = require("pyarrow", _PURPOSE).types
    return bool(is_list(types, kind) and types.is_floating(innermost(types, kind)))


def _check_digits(array: Any, kind: Any, name: str) -> None:
    """Raise DataError for floats so large that the original integers have lost digits. ``kind``:
    the original type.
    """
    pa, pc = require("pyarrow", _PURPOSE), require("pyarrow.compute", _PURPOSE)
    if not name or not pa.types.is_integer(innermost(pa.types, kind)):
        return
    while is_list(pa.types, array.type):
        array = array.flatten()
    largest = pc.max(pc.abs(array)).as_py() if len(array) - array.null_count else 0
    if largest >= _DIGITS:
        raise DataError(
            f"column {name!r} holds null and integers of 2^53 or more, whose last digits Spark"
            f" before 4.1 changes ({largest:.0f}, for example). Fill the nulls (df.fillna; in an"
            " array F.transform(column, lambda x: F.coalesce(x, F.lit(0)))), drop such rows, or"
            " use Spark 4.1"
        )


def _named(kind: str) -> Any:
    """Return the Arrow type for a Spark type's name, for a column without values; null for types
    that models do not accept.
    """
    pa = require("pyarrow", _PURPOSE)
    if decimal := _DECIMAL.fullmatch(kind):
        return pa.decimal128(38, int(decimal[1]))
    try:
        return arrow_type(parse(kind))
    except SettingsError:
        return pa.null()


def _widest(kind: Any) -> Any:
    """Return decimals with Spark's maximum precision, and other types unchanged.

    Arrow uses the precision of these values, but other rows of the column may need more.
    """
    pa = require("pyarrow", _PURPOSE)
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    return pa.list_(_widest(kind.value_type)) if pa.types.is_list(kind) else kind


def _struct(columns: Any) -> Any:
    """Return structs, with null for a row without values, because a row of pandas is never null.

    The types of a vector's or image's fields do not depend on the rows' values.
    """
    pa = require("pyarrow", _PURPOSE)
    known = ({each.name: each.type for each in arrow_type(parse(kind))} for kind in _STRUCTS)
    kinds = next((kinds for kinds in known if kinds.keys() == {*columns}), {})
    fields = [
        pa.array(columns[name], kinds[name], from_pandas=True) if kinds else _arrow(columns[name])
        for name in columns
    ]
    return pa.StructArray.from_arrays(
        fields, [*columns], mask=pa.array(columns.isna().all(axis=1).to_numpy())
    )


def to_pandas(array: Any) -> Any:
    """Return the result of a pandas function for Spark: a Series, and for structs a DataFrame."""
    series, frame = _arrow_backed()

    def made(each: Any) -> Any:
        return series(each.to_pandas(types_mapper=require("pandas", _PURPOSE).ArrowDtype))

    if not require("pyarrow", _PURPOSE).types.is_struct(array.type):
        return made(array)
    return frame(
        {field.name: made(each) for field, each in zip(array.type, array.flatten(), strict=True)}
    )


@functools.cache
def _arrow_backed() -> tuple[Any, Any]:
    """Return Series and DataFrame classes that keep Arrow's arrays until Spark receives them.

    Arrow's arrays distinguish null from NaN, and have integers next to null. Spark would otherwise
    convert lists and structs to Python objects (by ``apply``), in which NaN becomes null.
    """
    pandas = require("pandas", _PURPOSE)

    class Series(pandas.Series):  # type: ignore[misc, name-defined]
        @property
        def _constructor(self) -> Any:
            return Series

        def apply(self, *_: Any, **__: Any) -> Any:
            return self

    class Frame(pandas.DataFrame):  # type: ignore[misc, name-defined]
        @property
        def _constructor_sliced(self) -> Any:
            return Series

    return Series, Frame
