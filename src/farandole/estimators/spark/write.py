"""A DataFrame as data for an estimator: validated, split, written, and removed when training
ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import types as T

from farandole.data import ParquetData, from_spark
from farandole.data.parquet.location import NullError
from farandole.errors import DataError
from farandole.estimators.spark.fields import field_of
from farandole.estimators.spark.split import computed_once, split
from farandole.estimators.spark.validate import check_types, check_values
from farandole.estimators.spec import Columns


@contextlib.contextmanager
def prepared(
    frame: Any,
    columns: Columns,
    validation: float | str | None,
    parent: str | None,
    options: Mapping[str, Any],
    seed: int,
) -> Iterator[tuple[ParquetData, ParquetData | None]]:
    """Yield training rows and validation rows of a DataFrame, as files that exist until the
    ``with`` block ends.
    """
    check_types(frame, columns, options)
    reading = {**options, "columns": columns.all, "objects": columns.transform is not None}
    with contextlib.ExitStack() as stack:
        frame = stack.enter_context(computed_once(frame, columns.all, validation))
        train, held = split(frame, columns.all, validation, seed)
        data = stack.enter_context(
            _write(train, parent, reading, "the DataFrame has no rows for training")
        )
        other = None
        if held is not None:
            reading["shapes"] = {**padded(data), **(options.get("shapes") or {})}
            empty = (
                "Validation DataFrame is empty. Increase the validation split, or check the"
                " validation column"
            )
            if isinstance(validation, str) and isinstance(
                field_of(frame, validation).dataType, T.StringType
            ):
                empty += (
                    ", which holds text: convert it to bool, for example with"
                    f" F.col({validation!r}) == 'test'"
                )
            other = stack.enter_context(
                _write(held, parent, reading, f"{empty}: validation={validation!r}")
            )
        for rows in (data, other):
            if rows is not None:
                check_values(frame.sparkSession, rows, columns)
        yield data, other


def _write(frame: Any, parent: str | None, options: Mapping[str, Any], empty: str) -> Any:
    try:
        return from_spark(frame, parent=parent, **options)
    except NullError as error:
        name = error.column
        raise DataError(
            f"column {name!r} holds null. Pass data_options={{'fill': {{{name!r}: value}}}}, or"
            f" drop such rows (df.dropna(subset=[{name!r}]))"
        ) from None
    except DataError:
        if frame.isEmpty():
            raise DataError(empty) from None
        raise


def padded(data: ParquetData) -> dict[str, tuple[int, ...]]:
    """Return the shapes of padded lists, which other rows share with the training rows."""
    return {
        each.name: each.shape
        for each in data.columns
        if each.fill is not None and each.kind in ("list", "vector")
    }
