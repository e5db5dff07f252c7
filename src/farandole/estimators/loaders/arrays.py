"""Conversions of row arrays to a model's shapes and integer types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.errors import DataError

if TYPE_CHECKING:
    from farandole.base.types import Array


def fits(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Return whether rows of ``shape`` may be reshaped to ``target``.

    Both must have the same number of elements. Shapes with the same axes in a different order
    (channels first and channels last) do not fit, because a reshape would mix up the elements.
    """
    own, other = ([length for length in axes if length != 1] for axes in (shape, target))
    return math.prod(own) == math.prod(other) and (own == other or sorted(own) != sorted(other))


def rows_of(array: Any, shape: Sequence[int] | None) -> Any:
    """Reshape an array or tensor to rows of ``shape``, in which -1 is the number of rows; without
    ``shape``, return it unchanged.
    """
    return (
        array
        if shape is None
        else array.reshape(len(array), *[length for length in shape if length != -1])
    )


def whole_numbers(array: Array, dtype: str) -> Array:
    """Return ``array`` as ``dtype``. Raises DataError for a number that would change: 1.7, NaN, 300
    as uint8.
    """
    with np.errstate(invalid="ignore"):
        converted = array.astype(dtype, copy=False)
    if converted is array or np.can_cast(array.dtype, dtype):
        return converted
    # compare signs, too: -1 as uint32 converts back to -1
    wrong = (converted.astype(array.dtype) != array) | ((converted < 0) != (array < 0))
    if wrong.any():
        raise DataError(
            f"a feature of integers ({dtype}) is {array[wrong].reshape(-1)[0]}. Convert categories"
            " to indices (StringIndexer), or remove the column from categorical_cols to use it as"
            " floats"
        )
    return converted
