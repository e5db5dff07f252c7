"""Predictions of a model as columns of a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import functions as F

from farandole.estimators.spark.frames import quote
from farandole.inference import predict_udf


def predicted(
    frame: Any, columns: Sequence[Any], loader: Callable[[], Callable[..., Any]], returns: Mapping[str, str], rows: int,
    finished: Mapping[str, Callable[[Any], Any]], options: Mapping[str, Any],
) -> Any:  # fmt: skip
    """``frame`` with a column for each of ``returns`` (name: type), computed of ``columns`` by the loader's model, and
    ``finished``. A column of that name is replaced. ``options``: how the columns are read, one for each."""
    fields = ",".join(f"o{place}:{kind}" for place, kind in enumerate(returns.values()))
    held = "__farandole_predictions"
    function = predict_udf(loader, returns=f"struct<{fields}>", batch_size=rows, **options)
    whole = frame.withColumn(held, function(*columns))
    added = {name: finished[name](F.col(f"{held}.o{place}")) for place, name in enumerate(returns)}
    kept = [F.col(quote(name)) for name in frame.columns if name not in added]
    return whole.select(*kept, *(column.alias(name) for name, column in added.items()))
