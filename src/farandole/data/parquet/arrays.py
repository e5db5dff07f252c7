"""Arrow arrays as numpy arrays of a column's dtype and shape."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.optional import require
from farandole.data.parquet.arrow_types import UNDECODED, is_list
from farandole.data.parquet.columns import Column
from farandole.data.parquet.location import RowLocation, null_error
from farandole.data.parquet.numeric_cast import cast, rule

if TYPE_CHECKING:
    from farandole.base.types import Array

_PURPOSE = "reading Parquet"


def values(array: Any, column: Column, location: RowLocation) -> Array:
    """Convert the rows of an Arrow array (or chunked array) to one numpy array of shape ``[rows,
    *shape]``, with the column's dtype.

    Columns to be decoded later (kind "encoded") and text columns become arrays of objects. Raises
    DataError.
    """
    pa = require("pyarrow", _PURPOSE)
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count and column.fill is None:
        raise null_error(column.name, first_null(array), location)
    rows = _READ[column.kind](array, column, location)
    return rows.reshape(len(array), *column.shape) if column.kind in ("number", "text") else rows


def plain(array: Any) -> Array:
    """Convert an Arrow array of numbers or booleans without nulls to a read-only numpy view of its
    memory, without pyarrow's pandas conversions.
    """
    pa = require("pyarrow", _PURPOSE)
    if pa.types.is_boolean(array.type):
        return plain(array.cast(pa.uint8())).view(np.bool_)
    dtype = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.empty(0, dtype)
    numbers: Array = np.frombuffer(array.buffers()[1], dtype)[
        array.offset : array.offset + len(array)
    ]
    # memory from the Parquet reader is writable, even while other code uses it
    numbers.flags.writeable = False
    return numbers


def first_null(array: Any) -> int:
    return int(np.flatnonzero(plain(array.is_null()))[0])


RowOf = Callable[[int], int]  # returns the row of an element of flat values


def _numbers(array: Any, column: Column, location: RowLocation, row_of: RowOf = int) -> Array:
    pa = require("pyarrow", _PURPOSE)
    if array.null_count:
        array = array.fill_null(scalar(column, array.type, location))
    if pa.types.is_decimal(array.type):
        array = _of_decimals(array, column)
    return _cast(plain(array), column, location, row_of)


def _of_decimals(array: Any, column: Column) -> Any:
    """Convert decimals exactly if integers are requested and the values are integers; otherwise to
    the nearest floats.

    The conversion goes through their digits, because Arrow's own turns 5027.90 into
    5027.900000000001.
    """
    pa = require("pyarrow", _PURPOSE)
    wanted = np.dtype(column.dtype).kind
    if wanted in "iu":
        with contextlib.suppress(pa.ArrowException):
            return array.cast(pa.int64() if wanted == "i" else pa.uint64())
    return array.cast(pa.string()).cast(pa.float64())


def _cast(numbers: Array, column: Column, location: RowLocation, row_of: RowOf) -> Array:
    """Convert numbers to the column's dtype. Raises DataError for the first number that does not
    fit.
    """
    converted, misfit = cast(numbers, column.dtype)
    if misfit >= 0:
        text = f"{numbers[misfit]} does not fit into {column.dtype}: {rule(column.dtype)}"
        cure = f"pass dtypes={{{column.name!r}: a dtype that holds it}}, or drop such rows"
        raise location.error(column.name, row_of(misfit), f"{text}; {cure}")
    return converted


def scalar(column: Column, kind: Any, location: RowLocation) -> Any:
    pa = require("pyarrow", _PURPOSE)
    fill = column.fill
    if isinstance(fill, float) and pa.types.is_decimal(kind):
        fill = Decimal(str(float(fill)))
    try:
        return pa.scalar(fill, kind)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise location.error(
            column.name, None, f"fill={column.fill!r} is not of type {kind} ({error})"
        ) from None


def _lists(array: Any, column: Column, location: RowLocation) -> Array:
    return _nested(array, column.shape, column, location, int)


def _nested(
    array: Any, shape: tuple[int, ...], column: Column, location: RowLocation, row_of: RowOf
) -> Array:
    """Convert lists of lists. ``row_of``: returns the row of each of the array's elements."""
    pa, pc = require("pyarrow", _PURPOSE), require("pyarrow.compute", _PURPOSE)
    if not shape or not is_list(pa.types, array.type):
        if shape or is_list(pa.types, array.type):
            raise location.error(
                column.name, None, f"its lists are not nested as in shape {column.shape}"
            )
        if array.null_count and column.fill is None:
            row = row_of(first_null(array))
            raise location.error(
                column.name, row, f"null in a list; give fill={{{column.name!r}: value}}"
            )
        return _numbers(array, column, location, row_of)
    inner = array.flatten()
    if pa.types.is_fixed_size_list(array.type):
        lengths = np.where(plain(array.is_valid()), array.type.list_size, 0)
    else:
        lengths = plain(pc.list_value_length(array).fill_null(0))
    expected = shape[0]
    flat_list = len(shape) > 1 and not is_list(pa.types, inner.type)
    if flat_list:  # (28, 28) declared for flat lists of 784 values
        expected, shape = int(np.prod(shape)), (int(np.prod(shape)),)
    wrong = np.flatnonzero(
        (lengths > expected) if column.fill is not None else (lengths != expected)
    )
    if wrong.size:
        row, length = row_of(int(wrong[0])), int(lengths[wrong[0]])
        cure = (
            ""
            if column.fill is not None or length > expected
            else f", or fill={{{column.name!r}: value}}"
        )
        raise location.error(
            column.name,
            row,
            f"a list of {length}, but shape {column.shape} needs {expected}; declare another one"
            f" with shapes={{{column.name!r}: ...}}{cure}",
        )
    rows = _flat(inner, shape[1:], column, location, row_of, lengths, expected)
    return rows.reshape(len(array), *(column.shape if flat_list else shape))


def _flat(
    inner: Any,
    shape: tuple[int, ...],
    column: Column,
    location: RowLocation,
    row_of: RowOf,
    lengths: Array,
    expected: int,
) -> Array:
    if (lengths == expected).all():
        return _nested(
            inner, shape, column, location, lambda element: row_of(element // max(expected, 1))
        )
    rows = np.full((len(lengths), expected, *shape), column.fill, column.dtype)
    ragged = _nested(
        inner, shape, column, location, lambda element: row_of(_owner(lengths, element))
    )
    rows[np.arange(expected) < lengths[:, None]] = ragged
    return rows


def _owner(lengths: Array, element: int) -> int:
    """Return the index of the list that has the element, among concatenated lists."""
    return int(np.searchsorted(np.cumsum(lengths), element, "right"))


def _vectors(array: Any, column: Column, location: RowLocation) -> Array:
    """Convert Spark's dense and sparse vectors."""
    pc = require("pyarrow.compute", _PURPOSE)
    size, rows = int(np.prod(column.shape)), len(array)

    def field(name: str) -> Any:
        return pc.struct_field(array, name)

    def lengths(of: Any) -> Array:
        return plain(pc.list_value_length(of).fill_null(0))

    there = plain(array.is_valid())
    sparse = (plain(field("type").fill_null(1)) == 0) & there
    dense = ~sparse & there
    numbers, places = field("values"), field("indices")
    counts = lengths(numbers)
    sizes = np.where(sparse, plain(field("size").fill_null(0)), counts)
    wrong = np.flatnonzero((sizes != size) & there)
    if wrong.size:
        row = int(wrong[0])
        raise location.error(
            column.name,
            row,
            f"a vector of size {sizes[row]}, but the others have {size}; declare another size with"
            f" shapes={{{column.name!r}: ...}}, or drop such rows",
        )
    flat = plain(numbers.flatten().fill_null(float("nan")))
    flat = _cast(flat, column, location, lambda element: _owner(counts, element))
    if dense.all():
        return flat.reshape(rows, *column.shape)
    result = np.zeros((rows, size), column.dtype)
    if not there.all():
        result[~there] = column.fill
    owner = np.repeat(np.arange(rows), counts)
    of_sparse = sparse[owner]
    result[dense] = flat[~of_sparse].reshape(-1, size)
    indices = plain(places.filter(pc.equal(field("type"), 0)).flatten())
    result[owner[of_sparse], indices] = flat[of_sparse]
    return result.reshape(rows, *column.shape)


def _raw(array: Any, column: Column, location: RowLocation) -> Array:
    """Convert bytes that hold the raw memory of an array."""
    pc = require("pyarrow.compute", _PURPOSE)
    if array.null_count and column.fill is None:  # inside an image that is not null
        raise null_error(column.name, first_null(array), location)
    lengths = plain(pc.binary_length(array).fill_null(column.width))
    wrong = np.flatnonzero(lengths != column.width)
    if wrong.size:
        row = int(wrong[0])
        raise location.error(
            column.name,
            row,
            f"{lengths[row]} bytes, but shape {column.shape} of {column.dtype} needs"
            f" {column.width}; declare another shape with shapes={{{column.name!r}: ...}}",
        )
    if array.null_count:
        array = array.fill_null(np.full(column.shape, column.fill, column.dtype).tobytes())
    return _end_to_end(array).view(column.dtype).reshape(len(array), *column.shape)


def _end_to_end(array: Any) -> Array:
    """Return the bytes of all rows of an Arrow array without nulls, as a view of its memory."""
    types, kind = require("pyarrow", _PURPOSE).types, array.type
    if not len(array):
        return np.empty(0, np.uint8)
    *_, places, data = array.buffers()
    if types.is_fixed_size_binary(kind):
        begin, end = (row * kind.byte_width for row in (array.offset, array.offset + len(array)))
    else:
        offsets = np.frombuffer(places, np.int64 if types.is_large_binary(kind) else np.int32)
        begin, end = offsets[array.offset], offsets[array.offset + len(array)]
    return np.frombuffer(data, np.uint8)[begin:end]


def _images(array: Any, column: Column, location: RowLocation) -> Array:
    """Read images of Spark's image source: rows of pixels, blue, green and red."""
    pc = require("pyarrow.compute", _PURPOSE)
    bad = np.flatnonzero(undecoded(array))
    if bad.size:
        raise location.error(column.name, int(bad[0]), UNDECODED)
    for name, length in zip(("height", "width", "nChannels"), column.shape, strict=True):
        lengths = plain(pc.struct_field(array, name).fill_null(length))
        wrong = np.flatnonzero(lengths != length)
        if wrong.size:
            text = (
                f"an image with {name}={lengths[wrong[0]]}, but the others have {length}; resize"
                " them first"
            )
            raise location.error(column.name, int(wrong[0]), text)
    return _raw(pc.struct_field(array, "data"), column, location)


def undecoded(array: Any) -> Array:
    """Return a mask of the images that Spark's image source could not decode: they have a height
    of -1.
    """
    pc = require("pyarrow.compute", _PURPOSE)
    return plain(pc.less(pc.struct_field(array, "height"), 0).fill_null(False))


def _objects(array: Any, column: Column, location: RowLocation) -> Array:
    if array.null_count:
        array = array.fill_null(scalar(column, array.type, location))
    objects = np.empty(len(array), object)
    objects[:] = array.to_pylist()
    return objects


_READ: dict[str, Callable[[Any, Column, RowLocation], Array]] = {
    "number": _numbers,
    "list": _lists,
    "vector": _vectors,
    "image": _images,
    "bytes": _raw,
    "encoded": _objects,
    "text": _objects,
}
