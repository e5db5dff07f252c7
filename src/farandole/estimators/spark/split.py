"""Split the rows of a DataFrame for training and validation, from a single computation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import functions as F

from farandole.data.spark_names import quote
from farandole.estimators.spark.fields import field_of
from farandole.estimators.spark.plan_stability import cached, may_vary
from farandole.estimators.spark.validate import check_sides

_PARTS = 1 << 30  # range of the hash that splits rows


@contextlib.contextmanager
def computed_once(
    frame: Any, names: Sequence[str], validation: float | str | None
) -> Iterator[Any]:
    """Yield a DataFrame whose training and validation rows, within the block, come from one
    computation.
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
    """Return rows for training and for validation.

    A split by a fraction is deterministic: it depends on neither the time nor the order of rows,
    and keeps equal rows together.
    """
    columns = [F.col(quote(name)) for name in names]
    quoted = [  # quoted names, regardless of their case in the DataFrame
        column if name in frame.columns else column.alias(name)
        for name, column in zip(names, columns, strict=True)
    ]
    if not validation:
        return frame.select(*quoted), None
    if isinstance(validation, str):
        # text that is not a number becomes null
        number = F.expr(f"try_cast({quote(validation)} as double)")
        held = F.nanvl(number, F.lit(0.0)) > 0  # to Spark, NaN is above all numbers
        return frame.filter(~held | held.isNull()).select(*quoted), frame.filter(held).select(
            *quoted
        )
    bucket = F.pmod(F.xxhash64(F.lit(seed), *columns), F.lit(_PARTS))
    held = bucket < F.lit(int(validation * _PARTS))
    return frame.select(*quoted).filter(~held), frame.select(*quoted).filter(held)
