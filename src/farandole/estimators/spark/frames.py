"""A DataFrame as data for an estimator: checked, split, written; gone when training ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

from farandole.data import ParquetData, from_spark
from farandole.data.parquet.location import NullError
from farandole.data.spark import spark_url
from farandole.errors import DataError, counted
from farandole.estimators import row_weights
from farandole.estimators.nonfinite import KINDS, warn_nonfinite
from farandole.estimators.spark.plan_stability import cached, may_vary
from farandole.estimators.spec import Columns

_PARTS = 1 << 30  # of the hash that splits rows
_TEXT = "index it first (StringIndexer), or leave it out"


@contextlib.contextmanager
def prepared(
    frame: Any,
    columns: Columns,
    validation: float | str | None,
    parent: str | None,
    options: Mapping[str, Any],
    seed: int,
) -> Iterator[tuple[ParquetData, ParquetData | None]]:
    """Training rows and validation rows of a DataFrame, as files that are there until the ``with``
    block ends.
    """
    check_types(frame, columns, options)
    given = {**options, "columns": columns.all}
    with contextlib.ExitStack() as stack:
        frame = stack.enter_context(computed_once(frame, columns.all, validation))
        train, held = split(frame, columns.all, validation, seed)
        data = stack.enter_context(
            _written(train, parent, given, "the DataFrame has no rows for training")
        )
        other = None
        if held is not None:
            given["shapes"] = {**padded(data), **(options.get("shapes") or {})}
            empty = (
                "Validation DataFrame is empty. Increase the validation split, or look at the"
                " validation column"
            )
            if isinstance(validation, str) and isinstance(
                field_of(frame, validation).dataType, T.StringType
            ):
                empty += (
                    f", which holds text: make numbers of it, as (F.col({validation!r}) == 'test')"
                    " does"
                )
            other = stack.enter_context(
                _written(held, parent, given, f"{empty}: validation={validation!r}")
            )
        for each in (data, other):
            if each is not None:
                check_values(frame.sparkSession, each, columns)
        yield data, other


@contextlib.contextmanager
def computed_once(
    frame: Any, names: Sequence[str], validation: float | str | None
) -> Iterator[Any]:
    """A DataFrame whose sides for training and for validation have the rows of one computation,
    within the block.
    """
    if isinstance(validation, str):
        _check_sides(frame, validation)
    if not validation or not may_vary(frame):
        yield frame
        return
    if isinstance(validation, str):
        names = [*names, validation]
    found = dict.fromkeys(field_of(frame, name).name for name in names)
    with cached(frame.select(*(F.col(quote(name)) for name in found))) as same:
        yield same


def _check_sides(frame: Any, name: str) -> None:
    """DataError unless it is a column that says which rows are for validation."""
    field = field_of(frame, name)
    if field is None:
        raise unfound(frame, "Validation", name)
    if not isinstance(field.dataType, T.NumericType | T.BooleanType | T.StringType):
        raise DataError(
            f"validation column {name!r} is of type {field.dataType.simpleString()}: rows where it"
            f" is above 0, or true, are for validation; make one of it, as df.withColumn({name!r},"
            f" F.col({name!r}) > '2024-01-01') does"
        )


def padded(data: ParquetData) -> dict[str, tuple[int, ...]]:
    """The shapes of lists that are filled up: training says them, and other rows follow."""
    return {
        each.name: each.shape
        for each in data.columns
        if each.fill is not None and each.kind in ("list", "vector")
    }


def _written(frame: Any, parent: str | None, options: Mapping[str, Any], empty: str) -> Any:
    try:
        return from_spark(frame, parent=parent, **options)
    except NullError as error:
        name = error.column
        raise DataError(
            f"column {name!r} holds null: give data_options={{'fill': {{{name!r}: value}}}}, or"
            f" leave such rows out (df.dropna(subset=[{name!r}]))"
        ) from None
    except DataError:
        if frame.isEmpty():
            raise DataError(empty) from None
        raise


def split(
    frame: Any, names: Sequence[str], validation: float | str | None, seed: int
) -> tuple[Any, Any]:
    """Rows for training and for validation. By a fraction: the same rows fall to the same side each
    time, whatever order they come in, and equal rows together.
    """
    found = [F.col(quote(name)) for name in names]
    quoted = [  # under these names, whatever their case in the DataFrame
        column if name in frame.columns else column.alias(name)
        for name, column in zip(names, found, strict=True)
    ]
    if not validation:
        return frame.select(*quoted), None
    if isinstance(validation, str):
        number = F.expr(f"try_cast({quote(validation)} as double)")  # of text that is none: null
        held = F.nanvl(number, F.lit(0.0)) > 0  # to Spark, NaN is above all numbers
        return frame.filter(~held | held.isNull()).select(*quoted), frame.filter(held).select(
            *quoted
        )
    place = F.pmod(F.xxhash64(F.lit(seed), *found), F.lit(_PARTS))
    held = place < F.lit(int(validation * _PARTS))
    return frame.select(*quoted).filter(~held), frame.select(*quoted).filter(held)


def field_of(frame: Any, name: str) -> Any:
    """The field of a column, as Spark finds it by name: unless it is case sensitive, also by one in
    another case. None if there is none, or several.
    """
    exact = [each for each in frame.schema.fields if each.name == name]
    if exact or case_sensitive(frame):
        return exact[0] if len(exact) == 1 else None
    found = [each for each in frame.schema.fields if each.name.lower() == name.lower()]
    return found[0] if len(found) == 1 else None


def unfound(frame: Any, what: str, name: str) -> DataError:
    """The error for a column without a ``field_of``."""
    fold = str if case_sensitive(frame) else str.lower
    same = [other for other in frame.columns if fold(other) == fold(name)]
    if same:
        return DataError(
            f"{what} column {name} is in the DataFrame {len(same)} times ({', '.join(same)}): give"
            " each a name of its own, by df.toDF(...), or select one"
        )
    return DataError(
        f"{what} column {name} does not exist in the DataFrame (it has {', '.join(frame.columns)})"
    )


def case_sensitive(frame: Any) -> bool:
    return str(frame.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def check_types(frame: Any, columns: Columns, options: Mapping[str, Any]) -> None:
    """DataError for a column that is missing, or whose type cannot become a tensor."""
    found = {name: field_of(frame, name) for name in columns.all}
    fields = {name: field.dataType for name, field in found.items() if field is not None}
    for what, chosen in (("Label", columns.labels), ("Feature", columns.features)):
        for name in chosen:
            if name not in fields:
                raise unfound(frame, what, name)
    if columns.weight is not None and not isinstance(fields.get(columns.weight), T.NumericType):
        raise DataError(
            f"sample_weight_col={columns.weight!r} is no column of numbers in the DataFrame"
        )
    if columns.transform is not None:
        return  # which may make numbers of anything
    for name in columns.all:
        why = _unusable(
            fields[name], {*(options.get("decode") or {}), *(options.get("shapes") or {})}, name
        )
        if why:
            what = "label" if name in columns.labels else "feature"
            raise DataError(
                f"{what} column {name!r} is of type {fields[name].simpleString()}: {why}"
            )


def _unusable(kind: Any, readable: set[str], name: str) -> str:
    if isinstance(kind, T.NumericType | T.BooleanType) or kind.typeName() in (
        "vectorudt",
        "vector",
    ):
        return ""
    if isinstance(kind, T.ArrayType):
        return _unusable(kind.elementType, set(), name)
    if isinstance(kind, T.StructType) and {"height", "width", "nChannels", "data"} <= {*kind.names}:
        return ""
    if isinstance(kind, T.BinaryType):
        return (
            ""
            if name in readable
            else f"give data_options={{'decode': {{{name!r}: function of the bytes}}}}"
        )
    if isinstance(kind, T.StructType):
        return "make columns of its fields, as F.col('column.field') is, or leave it out"
    if isinstance(kind, T.MapType):
        return "make columns of its values, as F.col('column')['key'] is, or leave it out"
    return (
        _TEXT
        if isinstance(kind, T.StringType)
        else "cast it to a number or an array, or leave it out"
    )


def check_values(session: Any, data: ParquetData, columns: Columns) -> None:
    """DataError if lists or vectors of a column differ in length, or hold null, and for weights
    below 0; a warning for a column with NaN or infinite numbers, of which one would make all
    weights NaN: footers do not tell, and ranks would find out in the middle of an epoch. Spark
    looks at these columns, in one pass.
    """
    chosen = [
        each for each in data.columns if each.kind in ("list", "vector") and each.fill is None
    ]
    found = session.read.parquet(spark_url(str(data.path)))
    nans = {each.name: _nan(found, each.name) for each in data.columns if each.kind in KINDS}
    numbers = [
        F.sum(F.when(nan, 1).otherwise(0)).alias(f"nan {name}")
        for name, nan in nans.items()
        if nan is not None
    ]
    for place, column in enumerate(chosen):
        values = F.col(quote(column.name))
        if column.kind == "vector":
            values = array_of(values)
        missing = values.isNull() | F.exists(values, lambda value: value.isNull())
        numbers += [
            F.sum(F.when(missing, 1).otherwise(0)).alias(f"missing{place}"),
            F.min(F.size(values)).alias(f"least{place}"),
            F.max(F.size(values)).alias(f"most{place}"),
        ]
    # ranks look at what it makes of them
    weight = columns.weight if columns.transform is None else None
    if weight is not None:
        numbers += _of_weights(F.col(quote(weight)).cast("double"))
    if not numbers:
        return
    row = found.agg(*numbers).first()
    if weight is not None:
        seen = row_weights.WeightCounts(row["wrong"], row["wrong one"], row["above"])
        # nulls, by ranks
        filled = any(each.name == weight and each.fill is not None for each in data.columns)
        row_weights.check(weight, seen, data.rows, everything=not filled)
    for place, column in enumerate(chosen):
        missing, least, most = (row[f"{what}{place}"] for what in ("missing", "least", "most"))
        fill = f"data_options={{'fill': {{{column.name!r}: value}}}}"
        if missing:
            raise DataError(
                f"column {column.name!r} holds null in {counted(missing, 'row')}: give {fill}, or"
                " leave them out"
            )
        if least != most:
            raise DataError(
                f"the {column.kind}s of column {column.name!r} have from {least} to {most}"
                " elements: a model takes rows of one shape; make them equally long, or give"
                f" {fill} and a shape"
            )
    for name, nan in nans.items():
        if nan is not None:
            warn_nonfinite(name, row[f"nan {name}"], data.rows, columns)


def _of_weights(weight: Any) -> list[Any]:
    """What ``row_weights.WeightCounts`` has, as aggregates."""
    wrong = _not_finite(weight) | (weight < 0)
    return [
        F.sum(F.when(wrong, 1).otherwise(0)).alias("wrong"),
        F.first(F.when(wrong, weight), ignorenulls=True).alias("wrong one"),
        F.sum(F.when(weight > 0, 1).otherwise(0)).alias("above"),
    ]


def array_of(vectors: Any) -> Any:
    """Spark's function fails on null, and does not say in which column."""
    from pyspark.ml.functions import vector_to_array

    return F.when(vectors.isNotNull(), vector_to_array(vectors))


def _nan(frame: Any, name: str) -> Any:
    """Whether a row has NaN or infinite numbers in this column; None for a type that has none."""
    kind, column = frame.schema[name].dataType, F.col(quote(name))
    if isinstance(kind, T.FloatType | T.DoubleType):
        return _not_finite(column)
    if kind.typeName() in ("vectorudt", "vector"):
        return F.exists(array_of(column), _not_finite)
    if isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.FloatType | T.DoubleType):
        return F.exists(column, _not_finite)
    return None


def _not_finite(value: Any) -> Any:
    return F.isnan(value) | (F.abs(value) == float("inf"))
