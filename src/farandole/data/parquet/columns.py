"""What a column holds, and its values as arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.base.interrupts import interrupts
from farandole.base.optional import require
from farandole.data.parquet.arrow_types import cure, innermost, is_bytes, is_list, number_dtype
from farandole.data.parquet.location import RowLocation, null_error
from farandole.data.parquet.numeric_cast import cast, is_number, rule
from farandole.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from farandole.base.types import Array

_PURPOSE = "reading Parquet"
_VECTOR = {"type", "size", "indices", "values"}  # how Spark's vectors lie in Parquet
_TRIES = 5  # of decode, after an error of the interpreter's own
_IMAGE = {"height", "width", "nChannels", "mode", "data"}  # and the images of its image source


class Column(NamedTuple):
    """``kind``: number, list, vector, image, bytes, encoded or text. ``shape``: of one row's value.
    ``fill``: stands for null, and for the end of lists that are too short. ``decode``: makes an
    array of one row's bytes.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    fill: Any = None
    decode: Callable[[bytes], Any] | None = None

    @property
    def width(self) -> int:
        """Bytes of one row, 0 where only the file knows."""
        return (
            0
            if self.kind in ("encoded", "text")
            else int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        )


class ColumnOptions(NamedTuple):
    """The user's options for columns, each by name."""

    shapes: Mapping[str, Sequence[int]]
    dtypes: Mapping[str, Any]
    fill: Mapping[str, Any]
    decode: Mapping[str, Callable[[bytes], Any]]

    @classmethod
    def of(
        cls,
        shapes: Mapping[str, Sequence[int]] | None,
        dtypes: Mapping[str, Any] | None,
        fill: Mapping[str, Any] | None,
        decode: Mapping[str, Callable[[bytes], Any]] | None,
    ) -> ColumnOptions:
        """Return the options as dicts of their own; None stands for no option."""
        return cls(dict(shapes or {}), dict(dtypes or {}), dict(fill or {}), dict(decode or {}))


def check_names(wanted: ColumnOptions, columns: Sequence[str]) -> None:
    """DataError for an option about a column that is not read."""
    for option in ("shapes", "dtypes", "fill", "decode"):
        for name in getattr(wanted, option):
            if name not in columns:
                near = did_you_mean(name, columns)
                raise DataError(
                    f"{option}={{{name!r}: ...}}: that column is not read; {', '.join(columns)}"
                    f" are{near}"
                )


def column_of(
    name: str, kind: Any, wanted: ColumnOptions, first: Callable[[], Any], where: RowLocation
) -> Column:
    """What the Arrow type ``kind`` holds. ``first()``: the value of the first row, for a shape that
    nobody declared.
    """
    column = _column_of(name, kind, wanted, first, where)
    if column.fill is not None:
        _check_fill(column, kind, where)
    return column


def _column_of(
    name: str, kind: Any, wanted: ColumnOptions, first: Callable[[], Any], where: RowLocation
) -> Column:
    pa = require("pyarrow", _PURPOSE)
    types, fill, decode = pa.types, wanted.fill.get(name), wanted.decode.get(name)
    shape = _declared(wanted, name, where)
    if types.is_dictionary(kind):
        kind = kind.value_type
    fields = (
        {kind.field(number).name for number in range(kind.num_fields)}
        if types.is_struct(kind)
        else set()
    )
    if is_bytes(types, kind) and (decode is not None or shape is not None):
        if decode is None:
            return Column(name, "bytes", _dtype(wanted, name, "uint8"), shape or (), fill)
        return _encoded(name, decode, first, wanted, where)
    if types.is_string(kind) or types.is_large_string(kind):
        if _dtype(wanted, name, "object") != "object":
            raise _no_number(name, kind, wanted, where)
        return Column(name, "text", "object", _of_one(name, shape, where), fill)
    if fields >= _VECTOR:
        size = _size(name, first(), where) if shape is None else shape
        return Column(name, "vector", _numeric(wanted, name, "float64", kind, where), size, fill)
    if fields >= _IMAGE:
        if shape is None:
            value = _present(name, first(), where)
            if value["height"] < 0:
                raise where.error(name, 0, UNDECODED)
            shape = (value["height"], value["width"], value["nChannels"])
        return Column(name, "image", _dtype(wanted, name, "uint8"), shape, fill)
    inner = innermost(types, kind)
    found = number_dtype(types, inner)
    dtype = found and _numeric(wanted, name, found, kind, where)
    if dtype and inner is kind:
        return Column(name, "number", dtype, _of_one(name, shape, where), fill)
    if dtype:
        return Column(
            name,
            "list",
            dtype,
            _lengths(name, kind, first, where) if shape is None else shape,
            fill,
        )
    hint = _BINARY if is_bytes(types, kind) else cure(types, kind)
    raise where.error(name, None, f"{kind} is no type that becomes an array: {hint}")


def _declared(wanted: ColumnOptions, name: str, where: RowLocation) -> tuple[int, ...] | None:
    """The shape that the user gave for a row of this column."""
    if wanted.shapes.get(name) is None:
        return None
    shape = tuple(int(length) for length in wanted.shapes[name])
    if any(length < 0 for length in shape):
        raise where.error(
            name,
            None,
            f"shapes={{{name!r}: {shape}}} leaves a length open: give the length of each axis of"
            " one row, without an axis for the rows",
        )
    return shape


def _of_one(name: str, shape: tuple[int, ...] | None, where: RowLocation) -> tuple[int, ...]:
    """The shape of rows that are one value: without axes, or with some of length 1."""
    if shape is not None and np.prod(shape) != 1:
        cure = "leave the shape out, or give (1,) for an axis of its own"
        raise where.error(
            name, None, f"shapes={{{name!r}: {shape}}}: each row is one value, and no list: {cure}"
        )
    return shape or ()


UNDECODED = (
    "an image that Spark could not decode; leave such rows out (option('dropInvalid', True) of its"
    " image source)"
)
_BINARY = "give decode={...: function of the bytes}, or shapes={...: shape} for raw bytes"


def _encoded(
    name: str, decode: Any, first: Callable[[], Any], wanted: ColumnOptions, where: RowLocation
) -> Column:
    """A column whose bytes ``decode`` makes arrays of: the first row's shows the shape."""
    value = first()
    fill, shape = wanted.fill.get(name), _declared(wanted, name, where)
    column = Column(name, "encoded", _dtype(wanted, name, "uint8"), shape or (), fill, decode)
    value = fill if value is None else value
    if value is None:
        return column
    try:
        found = decoded(value, column._replace(shape=()))
        shape = found.shape if shape is None else shape
    except DataError as error:
        raise where.error(name, 0, str(error)) from error.__cause__
    return column._replace(shape=tuple(shape), dtype=_dtype(wanted, name, found.dtype.name))


def decoded(value: bytes, column: Column) -> Array:
    """The array of one row's bytes. DataError, which does not know the place, if it fails or has
    another shape.
    """
    try:
        found = np.asarray(_called(column, value))
    except Exception as error:  # the user's function
        if interrupts(error):
            raise
        raise DataError(
            f"decode failed on {len(value)} bytes: {type(error).__name__}: {error}"
        ) from error
    if column.shape and found.shape != column.shape:
        raise DataError(
            f"decode gives shape {found.shape}, where others have {column.shape}; resize in decode"
        )
    return found


def _called(column: Column, value: bytes) -> Any:
    """What ``decode`` gives. Some Pythons (3.11.7 is one) miscount now and then when two threads
    parse at once, as ``numpy.load`` does with each header
    (github.com/python/cpython/issues/106905): the next try counts anew.
    """
    assert column.decode is not None
    for _ in range(_TRIES):
        with contextlib.suppress(SystemError):
            return column.decode(value)
    return column.decode(value)


def _dtype(wanted: ColumnOptions, name: str, found: str) -> str:
    chosen = wanted.dtypes.get(name)
    if chosen is None:
        return found
    try:
        dtype = np.dtype(chosen)
    except TypeError as error:
        raise DataError(
            f"dtypes={{{name!r}: {chosen!r}}}: numpy has no such dtype ({error})"
        ) from None
    if not dtype.isnative:
        raise DataError(
            f"dtypes={{{name!r}: {chosen!r}}}: batches have the byte order of this machine; for"
            f" bytes of the other one give decode={{{name!r}: a function with np.frombuffer(value,"
            f" {chosen!r}).astype({dtype.name!r})}}"
        )
    return str(dtype.name)


def _numeric(wanted: ColumnOptions, name: str, found: str, kind: Any, where: RowLocation) -> str:
    """The dtype that is wanted of numbers."""
    dtype = _dtype(wanted, name, found)
    if name in wanted.dtypes and not is_number(wanted.dtypes[name]):
        raise _no_number(name, kind, wanted, where)
    return dtype


def _no_number(name: str, kind: Any, wanted: ColumnOptions, where: RowLocation) -> DataError:
    text = (
        f"{kind} does not become dtypes={{{name!r}: {wanted.dtypes[name]!r}}}: only numbers become"
        " other numbers"
    )
    return where.error(name, None, f"{text}; convert the column before, or leave its dtype out")


def _check_fill(column: Column, kind: Any, where: RowLocation) -> None:
    """DataError for a ``fill`` that the column's dtype, or the file's type, does not hold."""
    pa = require("pyarrow", _PURPOSE)
    if column.kind in ("number", "text"):
        _scalar(column, kind.value_type if pa.types.is_dictionary(kind) else kind, where)
    if column.kind in ("encoded", "text") or not is_number(column.dtype):
        return
    found = np.asarray(column.fill)
    if found.dtype == object:  # a Decimal, or an integer beyond 64 bits
        found = np.asarray([float(value) for value in found.flat])
    place = cast(found, column.dtype)[1] if is_number(found.dtype) else 0
    if place >= 0:
        raise where.error(
            column.name, None, f"fill={column.fill!r} does not fit: {rule(column.dtype)}"
        )


def fitting(found: Array, column: Column) -> Array:
    """What ``decode`` gave, as the column's dtype. DataError, which does not know the place, if it
    does not fit.
    """
    if not (is_number(found.dtype) and is_number(column.dtype)):
        return found.astype(column.dtype, copy=False)
    made, place = cast(found, column.dtype)
    if place >= 0:
        raise DataError(
            f"decode gives {found.flat[place]}, which does not fit: {rule(column.dtype)}; change"
            f" decode, or give dtypes={{{column.name!r}: a dtype that holds it}}"
        )
    return made


def _present(name: str, value: Any, where: RowLocation) -> Any:
    if value is None:
        raise where.error(name, 0, f"the first row is null: declare shapes={{{name!r}: (...)}}")
    return value


def _size(name: str, value: Any, where: RowLocation) -> tuple[int, ...]:
    found = _present(name, value, where)
    return (found["size"] if found["type"] == 0 else len(found["values"]),)


def _lengths(name: str, kind: Any, first: Callable[[], Any], where: RowLocation) -> tuple[int, ...]:
    """The shape of lists: of fixed ones from their type, otherwise that of the first row."""
    types, lengths = require("pyarrow", _PURPOSE).types, []
    while is_list(types, kind):
        if types.is_fixed_size_list(kind):
            lengths.append(kind.list_size)
        else:
            value = first()
            for _ in lengths:
                value = value[0] if value else None
            lengths.append(len(_present(name, value, where)))
        kind = kind.value_type
    return tuple(lengths)


def values(array: Any, column: Column, where: RowLocation) -> Array:
    """The rows of an Arrow array (or chunked array) as one numpy array: ``[rows, *shape]``, with
    the column's dtype.

    Columns that are decoded later (kind "encoded") and texts are arrays of objects. Raises
    DataError.
    """
    pa = require("pyarrow", _PURPOSE)
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count and column.fill is None:
        raise null_error(column.name, first_null(array), where)
    found = _READ[column.kind](array, column, where)
    return found.reshape(len(array), *column.shape) if column.kind in ("number", "text") else found


def plain(array: Any) -> Array:
    """An Arrow array of numbers or booleans, without nulls, as numpy: its own memory, which is read
    only, without pyarrow's conversions for pandas.
    """
    pa = require("pyarrow", _PURPOSE)
    if pa.types.is_boolean(array.type):
        return plain(array.cast(pa.uint8())).view(np.bool_)
    dtype = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.empty(0, dtype)
    found: Array = np.frombuffer(array.buffers()[1], dtype)[
        array.offset : array.offset + len(array)
    ]
    # what Parquet is read into could be written, also where others still need it
    found.flags.writeable = False
    return found


def first_null(array: Any) -> int:
    return int(np.flatnonzero(plain(array.is_null()))[0])


RowOf = Callable[[int], int]  # the row to which an element of flat values belongs


def _numbers(array: Any, column: Column, where: RowLocation, row_of: RowOf = int) -> Array:
    pa = require("pyarrow", _PURPOSE)
    if array.null_count:
        array = array.fill_null(_scalar(column, array.type, where))
    if pa.types.is_decimal(array.type):
        array = _of_decimals(array, column)
    return _cast(plain(array), column, where, row_of)


def _of_decimals(array: Any, column: Column) -> Any:
    """Exactly, where integers are wanted and the values are some; otherwise the nearest numbers, by
    way of their digits: what Arrow makes of 5027.90 itself is 5027.900000000001.
    """
    pa = require("pyarrow", _PURPOSE)
    wanted = np.dtype(column.dtype).kind
    if wanted in "iu":
        with contextlib.suppress(pa.ArrowException):
            return array.cast(pa.int64() if wanted == "i" else pa.uint64())
    return array.cast(pa.string()).cast(pa.float64())


def _cast(found: Array, column: Column, where: RowLocation, row_of: RowOf) -> Array:
    """Numbers as the column's dtype. DataError for the first that it does not hold."""
    made, place = cast(found, column.dtype)
    if place >= 0:
        text = f"{found[place]} does not fit into {column.dtype}: {rule(column.dtype)}"
        cure = f"give dtypes={{{column.name!r}: a dtype that holds it}}, or leave such rows out"
        raise where.error(column.name, row_of(place), f"{text}; {cure}")
    return made


def _scalar(column: Column, kind: Any, where: RowLocation) -> Any:
    pa = require("pyarrow", _PURPOSE)
    fill = column.fill
    if isinstance(fill, float) and pa.types.is_decimal(kind):
        fill = Decimal(str(float(fill)))
    try:
        return pa.scalar(fill, kind)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise where.error(
            column.name, None, f"fill={column.fill!r} is no {kind} ({error})"
        ) from None


def _lists(array: Any, column: Column, where: RowLocation) -> Array:
    return _nested(array, column.shape, column, where, int)


def _nested(
    array: Any, shape: tuple[int, ...], column: Column, where: RowLocation, row_of: RowOf
) -> Array:
    """Lists of lists. ``row_of``: the row of each of the array's elements."""
    pa, pc = require("pyarrow", _PURPOSE), require("pyarrow.compute", _PURPOSE)
    if not shape or not is_list(pa.types, array.type):
        if shape or is_list(pa.types, array.type):
            raise where.error(
                column.name, None, f"its lists are not nested as shape {column.shape} says"
            )
        if array.null_count and column.fill is None:
            row = row_of(first_null(array))
            raise where.error(
                column.name, row, f"null in a list; give fill={{{column.name!r}: value}}"
            )
        return _numbers(array, column, where, row_of)
    inner = array.flatten()
    if pa.types.is_fixed_size_list(array.type):
        lengths = np.where(plain(array.is_valid()), array.type.list_size, 0)
    else:
        lengths = plain(pc.list_value_length(array).fill_null(0))
    expected = shape[0]
    flat_list = len(shape) > 1 and not is_list(pa.types, inner.type)
    if flat_list:  # (28, 28) declared of flat lists with 784 values
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
        raise where.error(
            column.name,
            row,
            f"a list of {length}, where shape {column.shape} asks for {expected}; "
            f"declare another one with shapes={{{column.name!r}: ...}}{cure}",
        )
    found = _flat(inner, shape[1:], column, where, row_of, lengths, expected)
    return found.reshape(len(array), *(column.shape if flat_list else shape))


def _flat(
    inner: Any,
    shape: tuple[int, ...],
    column: Column,
    where: RowLocation,
    row_of: RowOf,
    lengths: Array,
    expected: int,
) -> Array:
    if (lengths == expected).all():
        return _nested(
            inner, shape, column, where, lambda element: row_of(element // max(expected, 1))
        )
    found = np.full((len(lengths), expected, *shape), column.fill, column.dtype)
    ragged = _nested(inner, shape, column, where, lambda element: row_of(_owner(lengths, element)))
    found[np.arange(expected) < lengths[:, None]] = ragged
    return found


def _owner(lengths: Array, element: int) -> int:
    """Which of lists laid end to end has the element."""
    return int(np.searchsorted(np.cumsum(lengths), element, "right"))


def _vectors(array: Any, column: Column, where: RowLocation) -> Array:
    """Spark's dense and sparse vectors."""
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
        raise where.error(
            column.name,
            row,
            f"a vector of size {sizes[row]}, where the others have {size}; declare another one "
            f"with shapes={{{column.name!r}: ...}}, or leave such rows out",
        )
    flat = plain(numbers.flatten().fill_null(float("nan")))
    flat = _cast(flat, column, where, lambda element: _owner(counts, element))
    if dense.all():
        return flat.reshape(rows, *column.shape)
    found = np.zeros((rows, size), column.dtype)
    if not there.all():
        found[~there] = column.fill
    owner = np.repeat(np.arange(rows), counts)
    of_sparse = sparse[owner]
    found[dense] = flat[~of_sparse].reshape(-1, size)
    indices = plain(places.filter(pc.equal(field("type"), 0)).flatten())
    found[owner[of_sparse], indices] = flat[of_sparse]
    return found.reshape(rows, *column.shape)


def _raw(array: Any, column: Column, where: RowLocation) -> Array:
    """Bytes that are the array already."""
    pc = require("pyarrow.compute", _PURPOSE)
    if array.null_count and column.fill is None:  # within an image that is not null itself
        raise null_error(column.name, first_null(array), where)
    lengths = plain(pc.binary_length(array).fill_null(column.width))
    wrong = np.flatnonzero(lengths != column.width)
    if wrong.size:
        row = int(wrong[0])
        raise where.error(
            column.name,
            row,
            f"{lengths[row]} bytes, where shape {column.shape} of {column.dtype} asks for "
            f"{column.width}; declare another one with shapes={{{column.name!r}: ...}}",
        )
    if array.null_count:
        array = array.fill_null(np.full(column.shape, column.fill, column.dtype).tobytes())
    return _end_to_end(array).view(column.dtype).reshape(len(array), *column.shape)


def _end_to_end(array: Any) -> Array:
    """The bytes of all rows of an Arrow array without nulls, which is its own memory."""
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


def _images(array: Any, column: Column, where: RowLocation) -> Array:
    """Of Spark's image source: rows of pixels, blue, green and red."""
    pc = require("pyarrow.compute", _PURPOSE)
    bad = np.flatnonzero(undecoded(array))
    if bad.size:
        raise where.error(column.name, int(bad[0]), UNDECODED)
    for name, length in zip(("height", "width", "nChannels"), column.shape, strict=True):
        found = plain(pc.struct_field(array, name).fill_null(length))
        wrong = np.flatnonzero(found != length)
        if wrong.size:
            text = (
                f"an image with {name}={found[wrong[0]]}, where the others have {length}; resize"
                " them first"
            )
            raise where.error(column.name, int(wrong[0]), text)
    return _raw(pc.struct_field(array, "data"), column, where)


def undecoded(array: Any) -> Array:
    """Which images of Spark's image source it could not decode: they are there, with a height of
    -1.
    """
    pc = require("pyarrow.compute", _PURPOSE)
    return plain(pc.less(pc.struct_field(array, "height"), 0).fill_null(False))


def is_image(kind: Any) -> bool:
    """Whether an Arrow type is that of Spark's image source."""
    pa = require("pyarrow", _PURPOSE)
    return bool(pa.types.is_struct(kind)) and {field.name for field in kind} >= _IMAGE


def _objects(array: Any, column: Column, where: RowLocation) -> Array:
    if array.null_count:
        array = array.fill_null(_scalar(column, array.type, where))
    found = np.empty(len(array), object)
    found[:] = array.to_pylist()
    return found


_READ: dict[str, Callable[[Any, Column, RowLocation], Array]] = {
    "number": _numbers,
    "list": _lists,
    "vector": _vectors,
    "image": _images,
    "bytes": _raw,
    "encoded": _objects,
    "text": _objects,
}
