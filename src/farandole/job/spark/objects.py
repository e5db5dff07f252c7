"""Spark objects in values pickled for ranks.

A broadcast variable is sent as its value. Objects of the driver's session are refused, with advice
on passing data.
"""

from __future__ import annotations

import inspect
from typing import Any

from farandole.base import pickled
from farandole.errors import SettingsError

_TABLE = (
    "which is a plan in the driver's Spark session, and ranks have none. Pass its data instead:"
    " collect small data before the job ({collect}); write large data to storage that all"
    " executors can read ({write}), so that each rank reads its part"
)
_SESSION = (
    "the driver's Spark session, and ranks have none: use Spark before or after the job, and pass"
    " the function plain data or the path of files that all executors can read"
)
_REFUSED = {
    "DataFrame": (
        "a Spark DataFrame,"
        f" {_TABLE.format(collect='df.toPandas()', write='df.write.parquet(path)')}"
    ),
    "RDD": (
        f"a Spark RDD, {_TABLE.format(collect='rdd.collect()', write='rdd.saveAsPickleFile(path)')}"
    ),
    "SparkContext": f"a SparkContext, {_SESSION}",
    "SparkSession": f"a SparkSession, {_SESSION}",
    "Accumulator": (
        "a Spark accumulator; the driver never receives values that ranks add. Return numbers"
        " from the function instead (sum them over ranks with allreduce; HorovodRunner returns"
        " rank 0's result, farandole.run(..., launcher='spark') every rank's), or show them with"
        " log_to_driver"
    ),
    "UserDefinedFunction": (
        "a Spark UDF, which only Spark can call: use the Python function that it was made from "
        "(its attribute .func)"
    ),
    "Column": (
        "a Spark Column, which is valid only in the driver's Spark session: use plain Python or"
        " NumPy"
    ),
    "JavaObject": (
        "an object of Spark's JVM, which cannot leave the driver. Pass plain data, or the path of"
        " its saved files"
    ),
}


class Broadcast:
    """A rank's substitute for a ``pyspark.Broadcast``, with its ``value`` at the start of the
    job.
    """

    def __init__(self, value: Any) -> None:
        self.value = value


def refusal(value: Any) -> str:
    """Return why a Spark object cannot be sent to a rank, starting with its kind; empty for
    other objects.
    """
    if inspect.isfunction(value):
        is_udf = hasattr(value, "evalType") and hasattr(value, "func")
        return _REFUSED["UserDefinedFunction"] if is_udf else ""
    for kind in type(value).__mro__:
        package = kind.__module__.partition(".")[0]
        if package == "pyspark" and kind.__name__ in _REFUSED:
            return _REFUSED[kind.__name__]
        if package == "py4j":
            return _REFUSED["JavaObject"]
    return "" if getattr(value, "_java_obj", None) is None else _REFUSED["JavaObject"]


class _Pickler(pickled.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, type):
            if type(obj).__name__ == "Broadcast" and type(obj).__module__.startswith("pyspark."):
                return Broadcast, (obj.value,)
            why = refusal(obj)
            if why:
                raise SettingsError(why)
        return super().reducer_override(obj)


def dumps(value: Any) -> bytes:
    """Pickle like ``pickled.dumps``. Raises SettingsError for objects that ``refusal`` names."""
    return pickled.dumps(value, _Pickler)
