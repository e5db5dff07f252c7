"""Predictions of a model as columns of a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T

from farandole.base.pickled import dumps
from farandole.data.spark_names import quote
from farandole.errors import DataError
from farandole.estimators.spark.fields import case_sensitive
from farandole.inference.spark.archive import sent_archive
from farandole.inference.spark.udf import predict_udf_from_loader, unused

_CURE = (
    "A fitted model takes fill, decode and shapes from the estimator's data_options={...}."
    " farandole.inference.transform(df, model.getModel(), inputs=...) accepts them, and with"
    " errors='column' such rows become null, with the error in a column"
)
_COLUMNAR = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"


def predicted(
    frame: Any,
    columns: Mapping[str, Any],
    loader: Callable[[], Callable[..., Any]],
    returns: Sequence[str],
    rows: int,
    finished: Mapping[str, tuple[int, Callable[[Any], Any]]],
    options: Mapping[str, Any],
) -> Any:
    """Return ``frame`` with the columns ``finished``, replacing columns of their names.

    ``columns`` (name: column): the inputs of the loader's model. ``returns``: the type of each
    output. ``finished`` (name: output's number, function): makes a column from an output.
    ``options``: the reading options of each column.
    """
    fields = ",".join(f"o{index}:{kind}" for index, kind in enumerate(returns))
    held = unused(frame)
    function = predict_udf_from_loader(
        loader,
        returns=f"struct<{fields}>",
        batch_size=rows,
        inputs=[*columns],
        cure=_CURE,
        **options,
    )
    whole = _in_rows(frame).withColumn(held, function(*columns.values()))
    added = {name: make(F.col(f"{held}.o{index}")) for name, (index, make) in finished.items()}
    # no select, because other columns may have duplicate names
    return whole.drop(*added).withColumns(added).drop(held)


def _in_rows(frame: Any) -> Any:
    """Return ``frame`` with a filter that keeps all rows, if Spark (4.3) would pass file columns to
    Python unconverted.

    That fails with UNSUPPORTED_DATATYPE if one of the other columns is a vector. After a filter,
    Spark passes rows.
    """
    try:
        # a default given here would hide Spark's own
        columnar = frame.sparkSession.conf.get(_COLUMNAR)
    # older versions of Spark lack the setting: an error of PySpark's or, in 3.5, of py4j's
    except Exception:
        return frame
    if columnar.lower() != "true":
        return frame
    names = [
        field.name for field in frame.schema.fields if isinstance(field.dataType, T.UserDefinedType)
    ]
    for name in names:
        if frame.columns.count(name) == 1:
            frame = frame.filter(F.col(quote(name)).isNull() >= F.lit(False))
    return frame


def _others(frame: Any, names: Sequence[str]) -> list[str]:
    """Return the columns that remain when columns ``names`` are added, comparing names as Spark's
    ``withColumn`` does.
    """
    if case_sensitive(frame):
        return [name for name in frame.columns if name not in names]
    return [name for name in frame.columns if name.lower() not in {each.lower() for each in names}]


def predicted_by_row(
    frame: Any, model: Any, function: Callable[[Any, Any], Any], names: Sequence[str]
) -> Any:
    """Return ``frame`` with a column for each of ``names``, computed by ``function`` from the model
    and a row, as the ``get_prediction_fn`` of a subclass of Horovod's models does. Several numbers
    become a vector.
    """
    others = _others(frame, names)
    kept = [index for index, name in enumerate(frame.columns) if name in others]
    first = frame.first()
    example = (
        [None] * len(names) if first is None else _numbers(function(model.eval(), first), names)
    )
    kinds = [VectorUDT() if isinstance(each, np.ndarray) else T.DoubleType() for each in example]
    fields = [frame.schema.fields[index] for index in kept]
    fields += [T.StructField(name, kind) for name, kind in zip(names, kinds, strict=True)]
    predicted = frame.rdd.mapPartitions(
        _task(dumps((model, function, kept, names)), sent_archive())
    )
    return frame.sparkSession.createDataFrame(predicted, T.StructType(fields))


def _task(job: bytes, archive: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the task for executors, which may lack Farandole."""

    def run(rows: Iterator[Any]) -> Iterator[Any]:
        import sys

        if archive and "farandole" not in sys.modules:
            from pyspark import SparkFiles

            sys.path.insert(0, SparkFiles.get(archive))
        from farandole.estimators.spark.predictions import of_rows

        return of_rows(job, rows)

    return run


def of_rows(job: bytes, rows: Iterator[Any]) -> Iterator[Any]:
    """Yield rows with predictions, in a task."""
    model, function, kept, names = cloudpickle.loads(job)
    for row in rows:
        values = [
            Vectors.dense(each) if isinstance(each, np.ndarray) else each
            for each in _numbers(function(model, row), names)
        ]
        yield (*(row[index] for index in kept), *values)


def _numbers(outputs: Any, names: Sequence[str]) -> list[Any]:
    """Return a number or an array for each column."""
    several = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    if len(several) != len(names):
        raise DataError(
            f"get_prediction_fn() returns {len(several)} outputs of a row for the columns"
            f" {', '.join(names)}"
        )
    arrays = [
        np.asarray(each.detach().cpu() if hasattr(each, "detach") else each, np.float64)
        for each in several
    ]
    return [float(each.reshape(())) if each.size == 1 else each.reshape(-1) for each in arrays]
