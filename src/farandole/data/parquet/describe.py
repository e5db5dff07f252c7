"""Describe a column by its Arrow type, the user's options and the first row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from farandole.base.optional import require
from farandole.data.parquet.arrays import scalar
from farandole.data.parquet.arrow_types import (
    IMAGE,
    UNDECODED,
    VECTOR,
    cure,
    innermost,
    is_bytes,
    is_list,
    number_dtype,
)
from farandole.data.parquet.columns import Column, ColumnOptions
from farandole.data.parquet.decoding import decoded
from farandole.data.parquet.location import RowLocation
from farandole.data.parquet.numeric_cast import cast, is_number, rule
from farandole.errors import DataError

_PURPOSE = "reading Parquet"
_BINARY = "pass decode={...: function of the bytes}, or shapes={...: shape} for raw bytes"


def column_of(
    name: str,
    kind: Any,
    options: ColumnOptions,
    first: Callable[[], Any],
    location: RowLocation,
    objects: bool = False,
) -> Column:
    """Describe a column of the Arrow type ``kind``.

    ``objects``: columns without options that are not single numbers are read as Python objects.
    ``first()``: returns the value of the first row, for an undeclared shape. ``location``: the
    first row's location, for errors.
    """
    pa = require("pyarrow", _PURPOSE)
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    if objects and not any(name in by_name for by_name in options):
        if is_list(pa.types, values) and number_dtype(pa.types, innermost(pa.types, values)):
            return Column(name, "ragged", "object", ())
        if not number_dtype(pa.types, values):
            return Column(name, "object", "object", ())
    column = _Field(name, values, options, first, location).column()
    if column.fill is not None:
        _check_fill(column, kind, location)
    return column


class _Field(NamedTuple):
    """A column to describe: the arguments of ``column_of``."""

    name: str
    kind: Any
    options: ColumnOptions
    first: Callable[[], Any]
    location: RowLocation

    def column(self) -> Column:
        types, kind = require("pyarrow", _PURPOSE).types, self.kind
        shape, decode = self._declared(), self.options.decode.get(self.name)
        if is_bytes(types, kind) and (decode is not None or shape is not None):
            if decode is None:
                return self._described("bytes", self._dtype("uint8"), shape or ())
            return self._encoded(decode)
        if types.is_string(kind) or types.is_large_string(kind):
            if self._dtype("object") != "object":
                raise self._no_number()
            return self._described("text", "object", self._of_one(shape))
        if types.is_struct(kind):
            fields = {kind.field(number).name for number in range(kind.num_fields)}
            if fields >= VECTOR:
                shape = self._vector_shape() if shape is None else shape
                return self._described("vector", self._numeric("float64"), shape)
            if fields >= IMAGE:
                shape = self._image_shape() if shape is None else shape
                return self._described("image", self._dtype("uint8"), shape)
        return self._numbers(shape)

    def _described(self, kind: str, dtype: str, shape: tuple[int, ...]) -> Column:
        return Column(self.name, kind, dtype, shape, self.options.fill.get(self.name))

    def _numbers(self, shape: tuple[int, ...] | None) -> Column:
        """Describe a column of numbers, or of lists of them."""
        types, kind = require("pyarrow", _PURPOSE).types, self.kind
        inner = innermost(types, kind)
        dtype = number_dtype(types, inner)
        dtype = dtype and self._numeric(dtype)
        if dtype and inner is kind:
            return self._described("number", dtype, self._of_one(shape))
        if dtype:
            return self._described("list", dtype, self._lengths() if shape is None else shape)
        hint = _BINARY if is_bytes(types, kind) else cure(types, kind)
        raise self._error(None, f"{kind} cannot become an array; {hint}")

    def _encoded(self, decode: Callable[[bytes], Any]) -> Column:
        """Describe a column of bytes that ``decode`` turns into arrays, with the shape of the first
        row's array.
        """
        value, shape = self.first(), self._declared()
        column = self._described("encoded", self._dtype("uint8"), shape or ())
        column = column._replace(decode=decode)
        value = column.fill if value is None else value
        if value is None:
            return column
        try:
            array = decoded(value, column._replace(shape=()))
        except DataError as error:
            raise self._error(0, str(error)) from error.__cause__
        shape = array.shape if shape is None else shape
        return column._replace(shape=tuple(shape), dtype=self._dtype(array.dtype.name))

    # Dtypes.

    def _dtype(self, default: str) -> str:
        """Return the dtype that the user chose, or ``default``."""
        chosen = self.options.dtypes.get(self.name)
        if chosen is None:
            return default
        option = f"dtypes={{{self.name!r}: {chosen!r}}}"
        try:
            dtype = np.dtype(chosen)
        except TypeError as error:
            raise DataError(f"{option}: numpy has no such dtype ({error})") from None
        if not dtype.isnative:
            raise DataError(
                f"{option} does not have this machine's byte order; to read bytes in the other"
                " order, pass"
                f" decode={{{self.name!r}: a function with np.frombuffer(value,"
                f" {chosen!r}).astype({dtype.name!r})}}"
            )
        return str(dtype.name)

    def _numeric(self, default: str) -> str:
        """Return the dtype of a column of numbers. Raises DataError if the user's dtype is not
        numeric.
        """
        dtype = self._dtype(default)
        if self.name in self.options.dtypes and not is_number(self.options.dtypes[self.name]):
            raise self._no_number()
        return dtype

    def _no_number(self) -> DataError:
        text = (
            f"{self.kind} cannot be converted to"
            f" dtypes={{{self.name!r}: {self.options.dtypes[self.name]!r}}}, because only numbers"
            " become other numbers"
        )
        return self._error(None, f"{text}; convert the column first, or remove its dtype")

    # Shapes of a row.

    def _declared(self) -> tuple[int, ...] | None:
        """Return the user's shape."""
        if self.options.shapes.get(self.name) is None:
            return None
        shape = tuple(int(length) for length in self.options.shapes[self.name])
        if any(length < 0 for length in shape):
            raise self._error(
                None,
                f"shapes={{{self.name!r}: {shape}}} has an axis without a length; give the shape"
                " of one row, without an axis for the rows",
            )
        return shape

    def _of_one(self, shape: tuple[int, ...] | None) -> tuple[int, ...]:
        """Return the shape of single values: no axes, or axes of length 1."""
        if shape is not None and np.prod(shape) != 1:
            cure = "remove the shape, or use (1,) for a separate axis"
            raise self._error(
                None,
                f"shapes={{{self.name!r}: {shape}}} does not fit, because each row is one value;"
                f" {cure}",
            )
        return shape or ()

    def _vector_shape(self) -> tuple[int, ...]:
        vector = self._present(self.first())
        return (vector["size"] if vector["type"] == 0 else len(vector["values"]),)

    def _image_shape(self) -> tuple[int, ...]:
        image = self._present(self.first())
        if image["height"] < 0:
            raise self._error(0, UNDECODED)
        return (image["height"], image["width"], image["nChannels"])

    def _lengths(self) -> tuple[int, ...]:
        """Return the shape of lists: from the type if its size is fixed, otherwise from the first
        row.
        """
        types, kind, lengths = require("pyarrow", _PURPOSE).types, self.kind, []
        while is_list(types, kind):
            if types.is_fixed_size_list(kind):
                lengths.append(kind.list_size)
            else:
                value = self.first()
                for _ in lengths:
                    value = value[0] if value else None
                lengths.append(len(self._present(value)))
            kind = kind.value_type
        return tuple(lengths)

    def _present(self, value: Any) -> Any:
        if value is None:
            raise self._error(0, f"the first row is null; declare shapes={{{self.name!r}: (...)}}")
        return value

    def _error(self, row: int | None, text: str) -> DataError:
        return self.location.error(self.name, row, text)


def _check_fill(column: Column, kind: Any, location: RowLocation) -> None:
    """Raise DataError for a ``fill`` that does not fit the column's dtype or the file's type."""
    pa = require("pyarrow", _PURPOSE)
    if column.kind in ("number", "text"):
        scalar(column, kind.value_type if pa.types.is_dictionary(kind) else kind, location)
    if column.kind in ("encoded", "text") or not is_number(column.dtype):
        return
    fill = np.asarray(column.fill)
    if fill.dtype == object:  # a Decimal, or an integer beyond 64 bits
        fill = np.asarray([float(value) for value in fill.flat])
    misfit = cast(fill, column.dtype)[1] if is_number(fill.dtype) else 0
    if misfit >= 0:
        raise location.error(
            column.name, None, f"fill={column.fill!r} does not fit: {rule(column.dtype)}"
        )
