"""Checks before training for NaN and infinite numbers, and for invalid weights of rows.

A single NaN makes all weights of the model NaN, unless model or loss mask it.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from farandole.checks.catalogue import NONFINITE_DATA
from farandole.checks.reporting import warn
from farandole.data import ParquetData
from farandole.data.parquet.files import ParquetFiles
from farandole.estimators import row_weights
from farandole.estimators.spec import Columns

KINDS = ("number", "list", "vector")  # kinds of columns to check
# bytes of rows to check: training should begin soon, even with remote files
MOST = 64 << 20


def check_nonfinite(data: ParquetData, columns: Columns) -> None:
    """Warn about columns with NaN or infinite numbers, and raise DataError for them in the column
    of weights.

    Footers do not report them, so the first 64 MiB of rows are read.
    """
    numbers = [each for each in data.columns if each.kind in KINDS]
    one = {each.name for each in numbers if np.prod(each.shape) == 1}
    # ranks check weights made by transformation_fn
    weight = columns.weight if columns.transform is None and columns.weight in one else None
    floats = [each.name for each in numbers if np.dtype(each.dtype).kind == "f"]
    names = list(dict.fromkeys([*floats, *([weight] if weight is not None else [])]))
    if not names:
        return
    files, counts, rows, size = ParquetFiles(data.only(names)), Counter[str](), 0, 0
    weights = row_weights.WeightCounts()
    for group in data.scan.groups:
        if size and size + group.size > MOST:
            break
        for arrays in files.parts([group]):
            for name, array in arrays.items():
                if name == weight:
                    weights += row_weights.count_weights(
                        array.astype(np.float32, copy=False).reshape(-1)
                    )
                else:
                    counts[name] += int(
                        (~np.isfinite(array)).reshape(len(array), -1).any(axis=1).sum()
                    )
        rows, size = rows + group.rows, size + group.size
    if weight is not None:
        row_weights.check(weight, weights, rows, everything=rows == data.rows)
    for name in names:
        warn_nonfinite(name, counts[name], rows, columns)


def warn_nonfinite(name: str, count: int, rows: int, columns: Columns) -> None:
    """Warn about a column with NaN or infinite numbers in ``count`` of ``rows`` rows, if any."""
    if count:
        what = (
            "label" if name in columns.labels else "weight" if name == columns.weight else "feature"
        )
        finding = NONFINITE_DATA.finding(
            f"{what} column {name!r} holds NaN or infinite numbers in {count} of {rows} rows,"
            " which make the loss and all weights NaN unless model and loss mask them. Drop the"
            " rows (df.dropna, df.filter), or fill the values (df.fillna, Imputer)",
            where=name,
        )
        warn(finding)
