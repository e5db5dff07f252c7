"""DataFrames for estimators: validated, split into training and validation, and written once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from pyspark import StorageLevel
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import Window
from pyspark.sql import functions as F

from farandole.data import Store
from farandole.errors import DataError
from farandole.estimators.spark.plan_stability import cached, may_vary
from farandole.estimators.spark.prepare import prepare_data
from farandole.estimators.spark.split import computed_once, split
from farandole.estimators.spark.write import prepared
from farandole.estimators.spec import Columns
from tests.estimators.tools import Never, Pool, frame
from tests.estimators.torch_tools import estimator, net, weights
from tests.kits.messages import mentioning, mentions


@pytest.mark.parametrize(
    ("change", "params", "says"),
    [
        (
            ("x", "y", "k"),
            {"label_cols": ["q"]},
            ("column q", "x, y, k"),
        ),
        (("x", "string(y) as y"), {}, ("'y'", "string")),
        (
            ("x", "map('a', y) as y"),
            {},
            ("'y'", "map<string,double>"),
        ),
        (
            ("x", "if(z > 1, null, y) as y"),
            {},
            ("'y'", "data_options", "'fill'"),
        ),
        (
            ("if(z > 1, slice(x, 1, 2), x) as x", "y"),
            {},
            ("'x'", "2", "3", "column"),
        ),
        (
            ("if(z > 1, null, x) as x", "y"),
            {},
            ("'x'", "column"),
        ),
        (
            ("x", "y", "y as other"),
            {"feature_cols": ["x", "other"]},
            ("model", "features"),
        ),
        (("x", "y"), {"validation": "held"}, "column held"),
        (("x", "y", "0 as held"), {"validation": "held"}, "DataFrame"),
        (
            ("x", "y", "'test' as held"),
            {"validation": "held"},
            ("text", "bool", "'held'"),
        ),
        (
            ("x", "y", "date'2024-01-01' as held"),
            {"validation": "held"},
            ("'held'", "date"),
        ),
        (
            ("x", "y", "cast(k as string) as k"),
            {"sample_weight_col": "k"},
            ("sample_weight_col='k'", "column"),
        ),
    ],
    ids=[
        "missing",
        "text",
        "map",
        "null label",
        "lengths",
        "null list",
        "features",
        "no column",
        "empty",
        "side of text",
        "side of dates",
        "weight",
    ],
)
def test_a_bad_dataframe_is_one_error_before_training(
    spark: Any,
    scratch: Path,
    change: tuple[str, ...],
    params: dict[str, Any],
    says: str | tuple[str, ...],
) -> None:
    with pytest.raises(DataError, match=mentioning(says)):
        estimator(**{"backend": Never(1), **params}).fit(frame(spark).selectExpr(*change))
    assert list(scratch.iterdir()) == []


def test_empty_partitions_and_more_ranks_than_rows(spark: Any) -> None:
    rows = frame(spark, 1).repartition(7)
    trained = estimator(backend=Pool(2), epochs=2).fit(rows)
    assert len(trained.getHistory()) == 2
    assert trained.transform(rows).count() == 1
    assert trained.transform(rows.filter("y > 1e9")).count() == 0
    with pytest.raises(DataError, match=mentioning("DataFrame", "rows")):
        estimator().fit(rows.filter("y > 1e9"))


def test_columns_are_found_in_another_case_as_spark_finds_them(spark: Any) -> None:
    rows = frame(spark)
    options: dict[str, Any] = {"epochs": 1, "validation": "Z", "sample_weight_col": "w"}
    wanted = estimator(**{**options, "validation": "z"}).fit(rows)
    found = estimator(**options, feature_cols=["X"], label_cols=["Y"]).fit(rows)
    np.testing.assert_array_equal(weights(found.getModel()), weights(wanted.getModel()))
    expected = wanted.transform(rows).select("y__output").toPandas()["y__output"]
    shouted = rows.toDF("X", "Y", "K", "W", "Y__OUTPUT")
    for model in (found, wanted):
        made = model.setOutputCols(["y__output"]).transform(shouted)
        assert made.columns == ["X", "Y", "K", "W", "y__output"], (
            "a column of that name is replaced, as by withColumn"
        )
        np.testing.assert_array_equal(made.toPandas()["y__output"], expected)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(DataError, match=mentioning("column", "x")):
            wanted.transform(shouted)
        with pytest.raises(DataError, match=mentioning("column", "X")):
            estimator(feature_cols=["X"]).fit(rows)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_rows_that_spark_redraws_are_on_one_side_of_a_split(spark: Any, scratch: Path) -> None:
    drawn = F.udf(lambda: random.random(), "double").asNondeterministic()
    rows = spark.range(0, 200, 1, 2).select(
        F.col("id").alias("y"), drawn().alias("x"), F.round(drawn()).alias("held")
    )
    ages = rows.withColumn("x", F.current_timestamp().cast("double") - F.col("y"))
    for frame_of, validation in ((rows, 0.4), (rows, "HELD"), (ages, 0.4)):
        with prepared(frame_of, Columns(("x",), ("y",), None), validation, None, {}, 0) as (
            train,
            held,
        ):
            assert held is not None
            both = [
                row
                for data in (train, held)
                for batch in data.numpy(50, rank=0, size=1)
                for row in batch["y"]
            ]
            assert sorted(both) == list(range(200))
    store = Store.create(str(scratch / "store"))
    with prepare_data(1, store, ages, ["y"], ["x"], 0.4) as number:
        paths = store.get_train_data_path(number), store.get_val_data_path(number)
        assert sum(spark.read.parquet(path).count() for path in paths) == 200
    assert not spark.sparkContext._jsc.getPersistentRDDs()


def test_nan_in_the_column_of_validation_is_not_above_0(spark: Any) -> None:
    rows = spark.createDataFrame(
        [(1.0, 1.0), (2.0, float("nan")), (3.0, None), (4.0, 0.5)], "y double, held double"
    )
    train, held = split(rows, ["y"], "held", 0)
    assert [sorted(row.y for row in side.collect()) for side in (train, held)] == [
        [2.0, 3.0],
        [1.0, 4.0],
    ]
    train, held = split(
        rows.selectExpr("y", "if(y > 2, '1', if(y = 2, 'no', '0')) as held"), ["y"], "held", 0
    )
    assert [sorted(row.y for row in side.collect()) for side in (train, held)] == [
        [1.0, 2.0],
        [3.0, 4.0],
    ]


def test_concurrent_fits_keep_the_rows_until_the_last_ends(spark: Any) -> None:
    drawn = F.udf(lambda: random.random(), "double").asNondeterministic()
    rows = spark.range(0, 50, 1, 2).withColumn("x", drawn())
    first, second = (computed_once(rows, ("x",), 0.4) for _ in range(2))
    with second as same:
        with first:
            found = sorted(same.collect())
        assert sorted(same.filter("x >= 0").collect()) == found
    assert not spark.sparkContext._jsc.getPersistentRDDs()


def test_frames_persisted_by_the_program_stay_persisted(spark: Any) -> None:
    rows = spark.range(0, 50, 1, 2).withColumn("x", F.rand())
    own = rows.select("x").persist()
    with computed_once(rows, ("x",), 0.4):
        pass
    assert own.storageLevel.useMemory
    own.unpersist()


def test_nondeterministic_frames_are_computed_once(spark: Any, tmp_path: Path) -> None:
    """The last bit of a floating-point sum depends on the order of rows after an exchange, so rows
    could fall on both sides of a split, or on none; on a cluster the order differs in each
    computation.
    """
    spark.range(0, 100, 1, 2).selectExpr("id", "id % 7 AS k", "sin(id) AS v").write.parquet(
        str(tmp_path / "rows")
    )
    rows = spark.read.parquet(str(tmp_path / "rows"))
    rows.createOrReplaceTempView("rows_to_split")
    half = F.pandas_udf(lambda values: values / 2, "double")
    alike = [
        rows.filter("v > 0").repartition(3).sort("v").withColumn("w", half("v")),
        rows.join(rows.select("id", (F.col("v") + 1).alias("w")), "id").union(
            rows.selectExpr("*", "1.0D")
        ),
        rows.withColumn("e", F.explode(F.array("v", "k"))),
        rows.groupBy("k").agg(F.sum("v")).cache(),
    ]
    otherwise = [
        rows.groupBy("k").agg(F.avg("v").alias("v")),
        rows.limit(50),
        rows.sample(0.5),
        rows.dropDuplicates(["k"]),
        rows.withColumn("r", F.row_number().over(Window.partitionBy("k").orderBy(F.lit(1)))),
        spark.sql("SELECT k, v - (SELECT avg(v) FROM rows_to_split) AS v FROM rows_to_split"),
        rows.withColumn("age", F.datediff(F.current_date(), F.lit("2020-01-01"))),
        rows.groupBy("k").applyInPandas(lambda table: table, rows.schema),
        rows.withColumn("v", F.rand()),
    ]
    assert [may_vary(each) for each in alike] == [False] * len(alike)
    assert [may_vary(each) for each in otherwise] == [True] * len(otherwise)
    alike[-1].unpersist()


def test_a_session_that_cannot_persist_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Databricks' serverless sessions; they have no plan here, either."""
    frame = Mock(spec=["persist", "storageLevel"], storageLevel=StorageLevel.NONE)
    frame.persist.side_effect = RuntimeError("[NOT_SUPPORTED_WITH_SERVERLESS] PERSIST TABLE")
    assert may_vary(frame)
    with cached(frame) as found:
        assert found is frame
    assert mentions(caplog.text, "NOT_SUPPORTED_WITH_SERVERLESS", "PERSIST", "TABLE")


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (
            "if(z > 2, -1.5, w)",
            ("'w'", "-1.5", "{} of 61 rows"),
        ),
        ("cast(if(z > 2, -3, 1) as decimal(9, 2))", ("{} of 61 rows", "-3")),
        ("if(z > 2, double('nan'), w)", ("{} of 61 rows", "nan")),
        ("if(z > 2, float('inf'), 1)", ("{} of 61 rows", "inf")),
        ("0", ("'w'", "0", "61 rows")),
    ],
    ids=["negative", "decimal", "nan", "infinite", "all 0"],
)
def test_invalid_row_weights_are_reported_before_training(
    spark: Any, weight: str, says: tuple[str, ...]
) -> None:
    rows = frame(spark).selectExpr("x", "y", "z", f"{weight} as w")
    wrong = rows.filter("z > 2").count()
    with pytest.raises(DataError, match=mentioning(*(each.format(wrong) for each in says))):
        estimator(sample_weight_col="w", backend=Never(1)).fit(rows)
    some = frame(spark).selectExpr("x", "y", "if(z > 1, 0, w) as w")
    with estimator(sample_weight_col="w")._written(some) as (data, _):
        assert data.rows == 61


def test_columns_with_nan_are_reported_before_training(
    spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    nan, infinite = F.lit(float("nan")), F.lit(float("-inf"))
    rows = frame(spark).withColumn("y", F.when(F.col("k") == 1, nan).otherwise(F.col("y")))
    rows = rows.withColumn(
        "x", F.when(F.col("z") > 2, F.array(nan, infinite, F.lit(0.0))).otherwise(F.col("x"))
    )
    rows = VectorAssembler(inputCols=["y", "z"], outputCol="v", handleInvalid="keep").transform(
        rows
    )
    labels, arrays = rows.filter("k = 1").count(), rows.filter("z > 2").count()
    made = estimator(net(1, inputs=5), feature_cols=["x", "v"], backend=Never(1))
    with made._written(rows) as (data, _):
        assert data.rows == 61
    for message in (
        f"label column 'y' holds NaN or infinite numbers in {labels} of 61 rows",
        f"feature column 'x' holds NaN or infinite numbers in {arrays} of",
        f"feature column 'v' holds NaN or infinite numbers in {labels} of",
    ):
        assert message in caplog.text
    assert labels > arrays > 0
    caplog.clear()
    with made._written(rows.filter("k != 1 and z <= 2")):
        assert caplog.text == ""
