"""Arrow columns of any type as Python objects, for user functions that convert them to numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.optional import require
from farandole.data.parquet.arrays import plain
from farandole.data.parquet.arrow_types import IMAGE, VECTOR, innermost, is_list, number_dtype

if TYPE_CHECKING:
    from farandole.base.types import Array

_PURPOSE = "reading Parquet"
KINDS = ("ragged", "object")  # kinds of columns read as Python objects


def python_values(array: Any) -> Array:
    """Return the rows of an Arrow array as an array of objects.

    Lists of numbers become numpy arrays of their own lengths, Spark's vectors and images numpy
    arrays, maps and structs dicts, null None (in a list of floats NaN); other values are as in
    pyarrow's ``to_pylist``. The arrays may be read-only.
    """
    pa = require("pyarrow", _PURPOSE)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    rows = np.empty(len(array), object)
    parts = _slices(array)
    if parts is None:
        convert = _converter(array.type)
        parts = [None if value is None else convert(value) for value in array.to_pylist()]
    for index, value in enumerate(parts):
        rows[index] = value
    return rows


def _slices(array: Any) -> list[Any] | None:
    """Return lists of numbers as views of Arrow's memory; None for other types, and for lists with
    null in them.
    """
    pa, pc = require("pyarrow", _PURPOSE), require("pyarrow.compute", _PURPOSE)
    kind = array.type
    if not is_list(pa.types, kind) or pa.types.is_decimal(kind.value_type):
        return None
    if not number_dtype(pa.types, kind.value_type) or array.flatten().null_count:
        return None
    there, flat = plain(array.is_valid()), plain(array.flatten())
    if pa.types.is_fixed_size_list(kind):
        lengths = np.where(there, kind.list_size, 0)
    else:
        lengths = plain(pc.list_value_length(array).fill_null(0))
    ends = np.cumsum(lengths)
    return [
        flat[end - length : end] if valid else None
        for end, length, valid in zip(ends, lengths, there, strict=True)
    ]


def _converter(kind: Any) -> Callable[[Any], Any]:
    types = require("pyarrow", _PURPOSE).types
    if is_list(types, kind):
        dtype = number_dtype(types, innermost(types, kind))
        return (lambda value: _numbers(value, dtype)) if dtype else list
    if types.is_map(kind):
        return dict
    fields = {field.name for field in kind} if types.is_struct(kind) else set()
    if fields >= VECTOR:
        return _vector
    return _image if fields >= IMAGE else lambda value: value


def _numbers(value: Any, dtype: str) -> Any:
    """Return nested lists as an array, or unchanged if they are ragged or contain null."""
    try:
        return np.asarray(value, dtype)
    except (TypeError, ValueError):
        return value


def _vector(value: Mapping[str, Any]) -> Array:
    if value["type"] == 1:  # dense
        return np.asarray(value["values"], np.float64)
    vector = np.zeros(value["size"])
    vector[value["indices"]] = value["values"]
    return vector


def _image(value: Mapping[str, Any]) -> Any:
    """Return pixels as an array [height, width, channels]; the dict itself if Spark could not
    decode the image, or its pixels are not bytes.
    """
    shape = tuple(value[name] for name in ("height", "width", "nChannels"))
    pixels = np.frombuffer(value["data"] or b"", np.uint8)
    return pixels.reshape(shape) if min(shape) > 0 and pixels.size == np.prod(shape) else value
