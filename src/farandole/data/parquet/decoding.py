"""Decoding of bytes by the user's ``decode`` function."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.interrupts import interrupts
from farandole.data.parquet.columns import Column
from farandole.data.parquet.numeric_cast import cast, is_number, rule
from farandole.errors import DataError

if TYPE_CHECKING:
    from farandole.base.types import Array
_TRIES = 5  # attempts, in case the interpreter fails


def decoded(value: bytes, column: Column) -> Array:
    """Return the array of one row's bytes. Raises DataError, without the location, if ``decode``
    fails or returns another shape.
    """
    try:
        array = np.asarray(_called(column, value))
    except Exception as error:  # raised by the user's function
        if interrupts(error):
            raise
        raise DataError(
            f"decode failed on {len(value)} bytes: {type(error).__name__}: {error}"
        ) from error
    if column.shape and array.shape != column.shape:
        raise DataError(
            f"decode returned shape {array.shape}, but others have {column.shape}; resize in decode"
        )
    return array


def _called(column: Column, value: bytes) -> Any:
    """Call ``decode``; retry if the interpreter fails.

    Some Pythons (3.11.7 is one) occasionally miscount the recursion depth when two threads parse
    concurrently, as ``numpy.load`` does for each header (github.com/python/cpython/issues/106905).
    The next call starts counting from zero.
    """
    assert column.decode is not None
    for _ in range(_TRIES):
        with contextlib.suppress(SystemError):
            return column.decode(value)
    return column.decode(value)


def fitting(array: Array, column: Column) -> Array:
    """Convert the output of ``decode`` to the column's dtype. Raises DataError, without the
    location, if it does not fit.
    """
    if not (is_number(array.dtype) and is_number(column.dtype)):
        return array.astype(column.dtype, copy=False)
    converted, misfit = cast(array, column.dtype)
    if misfit >= 0:
        raise DataError(
            f"decode returned {array.flat[misfit]}, which does not fit: {rule(column.dtype)};"
            f" change decode, or pass dtypes={{{column.name!r}: a dtype that holds it}}"
        )
    return converted
