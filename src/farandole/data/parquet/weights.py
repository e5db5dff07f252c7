"""The column with the weights of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farandole.data.parquet.columns import Column
from farandole.data.parquet.location import RowLocation

if TYPE_CHECKING:
    from farandole.base.types import Array


def check_column(column: Column, location: RowLocation) -> None:
    """Raise DataError for a column of weights without exactly one number per row."""
    if column.kind == "text" or np.prod(column.shape) != 1:
        held = "text" if column.kind == "text" else f"shape {column.shape}"
        raise location.error(
            column.name, None, f"it has {held} in each row, but a weight is one number"
        )


def check(weights: Array, column: Column, location: RowLocation) -> None:
    """Raise DataError for weights that are NaN or infinite. Every framework accepts negative
    ones.
    """
    if weights.dtype == object:  # bytes that are decoded later
        return
    right = np.isfinite(weights).reshape(len(weights), -1).all(axis=1)
    if not right.all():
        row = int(np.argmin(right))
        text = f"the weight of this row is {weights[row].item():g}, but a weight is a finite number"
        raise location.error(column.name, row, f"{text}; correct it, or drop such rows")
