"""A look for NaN and infinite numbers before training: of one, where model and loss do not leave it out, all weights
become NaN."""

from __future__ import annotations

from collections import Counter

import numpy as np

from farandole.data import ParquetData
from farandole.data.parquet.data import Files
from farandole.estimators.spec import Columns
from farandole.log import logger

KINDS = ("number", "list", "vector")  # of columns that are looked at
MOST = 64 << 20  # bytes of rows that are looked at: a fit should begin soon, also with files far away


def look(data: ParquetData, columns: Columns) -> None:
    """A warning for each column with such numbers, in the first 64 MiB of the rows: footers do not tell."""
    names = [each.name for each in data.columns if each.kind in KINDS and np.dtype(each.dtype).kind == "f"]
    if not names:
        return
    files, found, rows, size = Files(data.only(names)), Counter[str](), 0, 0
    for group in data.scan.groups:
        if size and size + group.size > MOST:
            break
        for arrays in files.parts([group]):
            for name, array in arrays.items():
                found[name] += int((~np.isfinite(array)).reshape(len(array), -1).any(axis=1).sum())
        rows, size = rows + group.rows, size + group.size
    for name in names:
        warn(name, found[name], rows, columns)


def warn(name: str, count: int, rows: int, columns: Columns) -> None:
    """Of a column that holds such numbers in ``count`` of so many rows, unless that is none."""
    if count:
        what = "label" if name in columns.labels else "weight" if name == columns.weight else "feature"
        logger.warning(
            "%s column %r holds NaN or infinite numbers in %s of %s rows: where model and loss do not leave them out, "
            "the loss is NaN, and so are all weights from then on; drop them (df.dropna, df.filter), or fill them "
            "(df.fillna, Imputer)",
            what, name, count, rows,
        )  # fmt: skip
