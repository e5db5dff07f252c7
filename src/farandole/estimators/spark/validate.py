"""Validation of a DataFrame: types before it is written, and values afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

from farandole.data import ParquetData
from farandole.data.spark_names import quote, spark_url
from farandole.errors import DataError, counted
from farandole.estimators import row_weights
from farandole.estimators.nonfinite import KINDS, warn_nonfinite
from farandole.estimators.spark.fields import field_error, field_of
from farandole.estimators.spec import Columns

_TEXT = "convert it to indices first (StringIndexer), or drop it"


def check_types(frame: Any, columns: Columns, options: Mapping[str, Any]) -> None:
    """Raise DataError for a missing column, or a type that cannot become a tensor."""
    fields_by_name = {name: field_of(frame, name) for name in columns.all}
    fields = {name: field.dataType for name, field in fields_by_name.items() if field is not None}
    for what, chosen in (("Label", columns.labels), ("Feature", columns.features)):
        for name in chosen:
            if name not in fields:
                raise field_error(frame, what, name)
    if columns.weight is not None and not isinstance(fields.get(columns.weight), T.NumericType):
        raise DataError(
            f"sample_weight_col={columns.weight!r} is not a column of numbers in the DataFrame"
        )
    if columns.transform is not None:
        return  # transformation_fn may convert any type to numbers
    for name in columns.all:
        if name in columns.texts and isinstance(fields[name], T.StringType):
            continue
        why = _unusable(
            fields[name], {*(options.get("decode") or {}), *(options.get("shapes") or {})}, name
        )
        if why:
            what = "label" if name in columns.labels else "feature"
            raise DataError(
                f"{what} column {name!r} has the unsupported type {fields[name].simpleString()}:"
                f" {why}"
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
            else f"pass data_options={{'decode': {{{name!r}: function of the bytes}}}}"
        )
    if isinstance(kind, T.StructType):
        return "select its fields as columns, F.col('column.field'), or drop it"
    if isinstance(kind, T.MapType):
        return "select its values as columns, F.col('column')['key'], or drop it"
    return (
        _TEXT if isinstance(kind, T.StringType) else "cast it to a number or an array, or drop it"
    )


def check_sides(frame: Any, name: str) -> None:
    """Raise DataError unless the column can select the rows for validation."""
    field = field_of(frame, name)
    if field is None:
        raise field_error(frame, "Validation", name)
    if not isinstance(field.dataType, T.NumericType | T.BooleanType | T.StringType):
        raise DataError(
            f"validation column {name!r} has type {field.dataType.simpleString()}, but must be a"
            " number or bool: rows above 0, or true, are used for validation. Create one, for"
            f" example with df.withColumn({name!r}, F.col({name!r}) > '2024-01-01')"
        )


def check_values(session: Any, data: ParquetData, columns: Columns) -> None:
    """Check values of the written rows, in one pass of Spark.

    Raises DataError if lists or vectors of a column differ in length, or hold null, and for weights
    below 0. Warns about columns with NaN or infinite numbers, because a single one makes all
    weights of the model NaN. Footers do not report such values, and ranks would find them only in
    the middle of an epoch.
    """
    chosen = [
        each for each in data.columns if each.kind in ("list", "vector") and each.fill is None
    ]
    rows = session.read.parquet(spark_url(str(data.path)))
    nans = {each.name: _nan(rows, each.name) for each in data.columns if each.kind in KINDS}
    numbers = [
        F.sum(F.when(nan, 1).otherwise(0)).alias(f"nan {name}")
        for name, nan in nans.items()
        if nan is not None
    ]
    for index, column in enumerate(chosen):
        values = F.col(quote(column.name))
        if column.kind == "vector":
            values = array_of(values)
        missing = values.isNull() | F.exists(values, lambda value: value.isNull())
        numbers += [
            F.sum(F.when(missing, 1).otherwise(0)).alias(f"missing{index}"),
            F.min(F.size(values)).alias(f"least{index}"),
            F.max(F.size(values)).alias(f"most{index}"),
        ]
    # ranks check the weights that it returns
    weight = columns.weight if columns.transform is None else None
    if weight is not None:
        numbers += _of_weights(F.col(quote(weight)).cast("double"))
    if not numbers:
        return
    row = rows.agg(*numbers).first()
    if weight is not None:
        seen = row_weights.WeightCounts(row["wrong"], row["wrong one"], row["above"])
        # ranks check nulls
        filled = any(each.name == weight and each.fill is not None for each in data.columns)
        row_weights.check(weight, seen, data.rows, everything=not filled)
    for index, column in enumerate(chosen):
        missing, least, most = (row[f"{what}{index}"] for what in ("missing", "least", "most"))
        fill = f"data_options={{'fill': {{{column.name!r}: value}}}}"
        if missing:
            raise DataError(
                f"column {column.name!r} holds null in {counted(missing, 'row')}. Pass {fill}, or"
                " drop these rows"
            )
        if least != most:
            raise DataError(
                f"the {column.kind}s of column {column.name!r} have from {least} to {most}"
                " elements, but a model takes rows of one shape. Give them the same length, or pass"
                f" {fill} and a shape"
            )
    for name, nan in nans.items():
        if nan is not None:
            warn_nonfinite(name, row[f"nan {name}"], data.rows, columns)


def _of_weights(weight: Any) -> list[Any]:
    """Return the fields of ``row_weights.WeightCounts`` as aggregates."""
    wrong = _not_finite(weight) | (weight < 0)
    return [
        F.sum(F.when(wrong, 1).otherwise(0)).alias("wrong"),
        F.first(F.when(wrong, weight), ignorenulls=True).alias("wrong one"),
        F.sum(F.when(weight > 0, 1).otherwise(0)).alias("above"),
    ]


def array_of(vectors: Any) -> Any:
    """Convert vectors to arrays. Spark's function fails on null without naming the column."""
    from pyspark.ml.functions import vector_to_array

    return F.when(vectors.isNotNull(), vector_to_array(vectors))


def _nan(frame: Any, name: str) -> Any:
    """Return whether a row has NaN or infinite numbers in this column; None for a type without
    them.
    """
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
