"""Spark's objects in a function: the accepted ones, and the errors for others; on ``local[2]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import JobFailedError, SettingsError
from farandole.spark import HorovodRunner
from tests.kits.messages import mentioning
from tests.spark import tools


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with tools.session("local[2]") as found:
        yield found


def made(spark: Any) -> dict[str, Any]:
    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql.functions import udf

    frame = spark.range(3)
    return {
        "frame": frame,
        "rdd": spark.sparkContext.parallelize([1]),
        "session": spark,
        "context": spark.sparkContext,
        "accumulator": spark.sparkContext.accumulator(0),
        "udf": udf(lambda x: x, "int"),
        "column": frame.id + 1,
        "transformer": VectorAssembler(inputCols=["id"], outputCol="f"),
    }


VALUES = {
    "frame": ("Spark DataFrame", "df.toPandas()"),
    "rdd": ("Spark RDD", "rdd.collect()"),
    "session": ("SparkSession", "driver"),
    "context": ("SparkContext", "driver"),
    "accumulator": ("Spark accumulator", "driver"),
    "udf": ("Spark UDF", ".func"),
    "column": ("Spark Column",),
    "transformer": ("Spark's JVM", "driver"),
}


def test_objects_of_the_drivers_session_are_refused_by_name(spark: Any) -> None:
    objects = made(spark)
    for np in (-1, 2):
        for name, value in objects.items():
            with pytest.raises(SettingsError, match=mentioning("'value'", *VALUES[name])):
                HorovodRunner(np=np).run(taking(value))
    with pytest.raises(SettingsError, match=mentioning("'data'", "Spark", "DataFrame")):
        HorovodRunner(np=-1).run(print, data=objects["frame"])
    with pytest.raises(SettingsError, match=mentioning("'data'", "Spark", "RDD")):
        HorovodRunner(np=-1).run(print, data=Holder(objects["rdd"]))


class Holder:
    def __init__(self, rows: Any) -> None:
        self.rows = rows


def taking(value: Any) -> Callable[[], Any]:
    return lambda: value


def test_broadcast_variables_files_and_rows_are_there(spark: Any, tmp_path: Path) -> None:
    from pyspark import SparkFiles
    from pyspark.ml.linalg import Vectors

    (tmp_path / "vocabulary.txt").write_text("hello")
    spark.sparkContext.addFile(str(tmp_path / "vocabulary.txt"))
    table, row, vector = (
        spark.sparkContext.broadcast({"w": [1, 2]}),
        spark.range(3).first(),
        Vectors.dense([1.0]),
    )

    def train(other: Any) -> Any:
        return (
            table.value["w"],
            other.value,
            row.id,
            vector[0],
            Path(SparkFiles.get("vocabulary.txt")).read_text(),
        )

    for np in (-1, 2):
        got = HorovodRunner(np=np).run(train, other=spark.sparkContext.broadcast(7))
        assert got == ([1, 2], 7, 0, 1.0, "hello")


def test_a_rank_starts_no_spark_of_its_own(spark: Any) -> None:
    def by_session() -> None:
        from pyspark.sql import SparkSession

        SparkSession.builder.getOrCreate()

    def by_context() -> None:
        from pyspark import SparkContext

        SparkContext.getOrCreate()

    for np, train in ((2, by_session), (-1, by_context)):
        with (
            tools.Clean(spark),
            pytest.raises(JobFailedError, match=mentioning("RuntimeError", "Spark")),
        ):
            HorovodRunner(np=np).run(train)
