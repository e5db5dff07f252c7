"""Split the rows of a DataFrame for training and validation, of one computation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import functions as F

from farandole.data.spark_names import quote
from farandole.estimators.spark.fields import field_of
from farandole.estimators.spark.plan_stability import cached, may_vary
from farandole.estimators.spark.validate import check_sides

_PARTS = 1 << 30  # of the hash that splits rows


@contextlib.contextmanager
def computed_once(
    frame: Any, names: Sequence[str], validation: float | str | None
) -> Iterator[Any]:
    """A DataFrame whose sides for training and for validation have the rows of one computation,
    within the block.
    """
    if isinstance(validation, str):
        check_sides(frame, validation)
    if not validation or not may_vary(frame):
        yield frame
        return
    if isinstance(validation, str):
        names = [*names, validation]
    selected = dict.fromkeys(field_of(frame, name).name for name in names)
    with cached(frame.select(*(F.col(quote(name)) for name in selected))) as same:
        yield same


def split(
    frame: Any, names: Sequence[str], validation: float | str | None, seed: int
) -> tuple[Any, Any]:
    """Rows for training and for validation. By a fraction: the same rows fall to the same side each
    time, whatever order they come in, and equal rows together.
    """
    columns = [F.col(quote(name)) for name in names]
    quoted = [  # under these names, whatever their case in the DataFrame
        column if name in frame.columns else column.alias(name)
        for name, column in zip(names, columns, strict=True)
    ]
    if not validation:
        return frame.select(*quoted), None
    if isinstance(validation, str):
        number = F.expr(f"try_cast({quote(validation)} as double)")  # of text that is none: null
        held = F.nanvl(number, F.lit(0.0)) > 0  # to Spark, NaN is above all numbers
        return frame.filter(~held | held.isNull()).select(*quoted), frame.filter(held).select(
            *quoted
        )
    bucket = F.pmod(F.xxhash64(F.lit(seed), *columns), F.lit(_PARTS))
    held = bucket < F.lit(int(validation * _PARTS))
    return frame.select(*quoted).filter(~held), frame.select(*quoted).filter(held)
