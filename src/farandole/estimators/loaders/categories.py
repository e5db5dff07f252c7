"""Features that a model takes as whole numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farandole.errors import DataError

if TYPE_CHECKING:
    from farandole.base.types import Array


def whole_numbers(array: Array, dtype: str) -> Array:
    """``array`` as ``dtype``. DataError for a number that would become another one: 1.7, NaN, 300
    as uint8.
    """
    with np.errstate(invalid="ignore"):
        found = array.astype(dtype, copy=False)
    if found is array or np.can_cast(array.dtype, dtype):
        return found
    # -1 as uint32 comes back as -1
    wrong = (found.astype(array.dtype) != array) | ((found < 0) != (array < 0))
    if wrong.any():
        raise DataError(
            f"a feature of whole numbers ({dtype}) is {array[wrong].reshape(-1)[0]}: index"
            " categories (StringIndexer), or leave the column out of categorical_cols, for an"
            " input of floats"
        )
    return found
