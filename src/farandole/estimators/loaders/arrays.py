"""Arrays of rows as a model takes them: in another shape, or as integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.errors import DataError

if TYPE_CHECKING:
    from farandole.base.types import Array


def fits(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Return whether rows of ``shape`` may be reshaped to ``target``: they have as many numbers,
    and not the same axes in another order (channels first and channels last), whose numbers would
    be mixed up.
    """
    own, other = ([length for length in axes if length != 1] for axes in (shape, target))
    return math.prod(own) == math.prod(other) and (own == other or sorted(own) != sorted(other))


def rows_of(array: Any, shape: Sequence[int] | None) -> Any:
    """An array or tensor as rows of ``shape``, in which -1 stands for the rows; as it is if there
    is none.
    """
    return (
        array
        if shape is None
        else array.reshape(len(array), *[length for length in shape if length != -1])
    )


def whole_numbers(array: Array, dtype: str) -> Array:
    """``array`` as ``dtype``. DataError for a number that would become another one: 1.7, NaN, 300
    as uint8.
    """
    with np.errstate(invalid="ignore"):
        converted = array.astype(dtype, copy=False)
    if converted is array or np.can_cast(array.dtype, dtype):
        return converted
    # -1 as uint32 comes back as -1
    wrong = (converted.astype(array.dtype) != array) | ((converted < 0) != (array < 0))
    if wrong.any():
        raise DataError(
            f"a feature of whole numbers ({dtype}) is {array[wrong].reshape(-1)[0]}: index"
            " categories (StringIndexer), or leave the column out of categorical_cols, for an"
            " input of floats"
        )
    return converted
