"""Estimators in Spark ML: Params, Pipeline, CrossValidator, write and read, bad DataFrames,
scratch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cloudpickle
import numpy as np
import pytest
import torch
from pyspark import StorageLevel
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import Vectors
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit
from pyspark.sql import Window
from pyspark.sql import functions as F

from farandole.data import Store, written_frames
from farandole.errors import DataError, SettingsError
from farandole.estimators import TorchEstimator, TorchModel
from farandole.estimators.spark.param_grid import ParamGridFits
from farandole.estimators.spark.persistence import public
from farandole.estimators.spark.plan_stability import cached, may_vary
from farandole.estimators.spark.prepare import prepare_data
from farandole.estimators.spark.split import computed_once, split
from farandole.estimators.spark.write import prepared
from farandole.estimators.spec import Columns
from tests.estimators.test_torch import estimator, net, weights
from tests.estimators.tools import Never, Pool, frame
from tests.kits.messages import mentioning, mentions


def test_a_pipeline_is_fitted_written_and_read(spark: Any, tmp_path: Path, scratch: Path) -> None:
    rows = frame(spark)
    assembler = VectorAssembler(inputCols=["y", "z"], outputCol="features")
    model = net(1, inputs=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    trained = estimator(
        model, optimizer=optimizer, feature_cols=["features"], epochs=5, validation=0.3
    )
    pipeline = Pipeline(stages=[assembler, trained])
    fitted = pipeline.fit(rows)
    expected = fitted.transform(rows).select("y__output").toPandas()["y__output"]
    assert len(fitted.stages[1].getHistory()[0]["validation"]) == 2
    fitted.write().overwrite().save(str(tmp_path / "model"))
    read = PipelineModel.load(str(tmp_path / "model"))
    assert isinstance(read.stages[1], TorchModel)
    for place, kind in enumerate(("VectorAssembler", "TorchModel")):
        (stage,) = (tmp_path / "model" / "stages").glob(f"{place}_*")
        with pytest.raises(SettingsError, match=mentioning("TorchEstimator", f"{kind}.load(path)")):
            TorchEstimator.load(str(stage))
    found = read.stages[1].setOutputCols(["found"]).transform(assembler.transform(rows))
    np.testing.assert_array_equal(found.toPandas()["found"], expected)
    pipeline.write().overwrite().save(str(tmp_path / "pipeline"))
    again = Pipeline.load(str(tmp_path / "pipeline")).getStages()[1]
    assert isinstance(again, TorchEstimator)
    assert (again.getBatchSize(), again.uid) == (trained.getBatchSize(), trained.uid)
    again.setBackend(Pool(1))
    refitted = Pipeline(stages=[assembler, again]).fit(rows)
    np.testing.assert_array_equal(
        weights(refitted.stages[1].getModel()), weights(fitted.stages[1].getModel())
    )
    assert list(scratch.iterdir()) == []


def test_cross_validation_and_a_split_choose_among_parameters(
    spark: Any, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a fold are written once for all parameters."""
    writing = Mock(wraps=written_frames._write)
    monkeypatch.setattr(written_frames, "_write", writing)
    rows = frame(spark)
    model = net()
    made = estimator(
        model, optimizer=torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), epochs=1
    )
    grid = ParamGridBuilder().addGrid(made.epochs, [1, 8]).build()
    evaluator = RegressionEvaluator(predictionCol="y__output", labelCol="y")
    found = CrossValidator(
        estimator=made, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, seed=1
    ).fit(rows)
    assert found.avgMetrics[1] < found.avgMetrics[0]
    assert len(found.bestModel.getHistory()) == 8
    split = TrainValidationSplit(
        estimator=made, estimatorParamMaps=grid, evaluator=evaluator, seed=1
    ).fit(rows)
    assert len(split.bestModel.getHistory()) == 8
    assert writing.call_count == (2 + 1) + (1 + 1), "each fold, and all rows for the best model"
    assert list(scratch.iterdir()) == []


def test_data_are_where_the_session_says_or_in_the_store(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, chosen = Store.create(str(tmp_path / "store")), tmp_path / "chosen"
    made = estimator(epochs=1, store=store)
    spark.conf.set("spark.farandole.data.dir", str(chosen))
    try:
        made.fit(frame(spark))
    finally:
        spark.conf.unset("spark.farandole.data.dir")
    assert (chosen.exists(), (tmp_path / "store" / "intermediate_data").exists()) == (True, False)
    made.fit(frame(spark))
    assert (tmp_path / "store" / "intermediate_data").exists()
    # of a cluster
    monkeypatch.setattr("farandole.estimators.spark.estimator.shared_folder", lambda session: "")
    with pytest.raises(
        SettingsError,
        match=mentioning("store=Store.create", "hdfs://", "spark.farandole.data"),
    ):
        estimator(backend=Never(1)).fit(frame(spark))


def test_on_spark_connect_ranks_are_no_tasks(
    spark: Any, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = frame(spark)
    # as Spark says it; the server may be in this process
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(SettingsError, match=mentioning("Spark", "backend=LocalBackend")):
        estimator(num_proc=2).fit(rows)
    assert list(scratch.iterdir()) == []


def test_several_trainings_share_data_until_the_last_has_ended() -> None:
    there: list[str] = []

    @contextmanager
    def data() -> Iterator[str]:
        there.append("rows")
        yield there[0]
        there.clear()

    def failing(_: str) -> None:
        raise ArithmeticError("no step today")

    whole = ParamGridFits(data(), [lambda rows: (rows, 0), lambda rows: (rows, 1)])
    assert next(whole) == (0, ("rows", 0))
    assert there
    assert list(whole) == [(1, ("rows", 1))]
    assert not there
    broken = ParamGridFits(data(), [str, failing, str])
    next(broken)
    # Spark's other threads would take the end of the iterator for that of their work
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            next(broken)
    assert not there
    abandoned = ParamGridFits(data(), [str])
    assert there
    del abandoned
    assert not there


def test_vectors_of_scores_and_rows_for_validation_by_a_column(spark: Any) -> None:
    rows = frame(spark).selectExpr(
        "if(z > 1.5, null, if(z > 1.2, slice(x, 1, 2), x)) as x",
        "k",
        "cast(k as double) as label",
        "z > 0 as held",
    )
    model = net(3)
    trained = estimator(
        model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.1),
        loss=torch.nn.CrossEntropyLoss(),
        epochs=30,
        label_cols=["label"],
        validation="held",
        monitor="val_loss",
        data_options={"fill": {"x": 0.0}},
    ).fit(rows)
    found = trained.transform(rows)
    assert dict(found.dtypes)["label__output"] == "vector"
    given = found.toPandas()
    scores = np.stack([each.toArray() for each in given["label__output"]])
    assert (scores.argmax(axis=1) == given["k"]).mean() > 0.8
    # none is as long as those of training
    short = trained.transform(rows.selectExpr("slice(x, 1, 2) as x").limit(3))
    assert [len(row["label__output"].toArray()) for row in short.collect()] == [3, 3, 3]


def test_secrets_of_file_systems_are_not_written(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("memory://here", storage_options={"key": "secret"})
    given = {
        "store": store,
        "data_options": {"fill": {"x": 0}, "storage_options": {"key": "secret"}},
        "epochs": 2,
    }
    found = public(given)
    assert b"secret" not in cloudpickle.dumps(found)
    assert (found["store"].prefix_path, found["data_options"]) == (
        store.prefix_path,
        {"fill": {"x": 0}},
    )
    assert (store.storage_options, given["data_options"]["storage_options"]) == (
        {"key": "secret"},
        {"key": "secret"},
    )
    assert "storage_options are not written" in caplog.text
    assert public({"epochs": 2}) == {"epochs": 2}


def test_every_parameter_has_its_default_and_accessors() -> None:
    made = TorchEstimator()
    for row in made._rows:
        name = "".join(part.capitalize() for part in row.name.split("_"))
        for accessor in (name, *row.also):
            assert getattr(made, f"get{accessor}")() == row.default
    made.setNumProc(2).setTrainReaderNumWorker(3).setShufflingBufferSize(7)
    assert (made.getNumProc(), made.getTrainReaderNumWorkers(), made.getShuffleBufferSize()) == (
        2,
        3,
        7,
    )
    model = TorchModel(label_columns=["y"])
    assert model.setLabelColoumns(["a", "b"]).getOutputCols() == ["a__output", "b__output"]
    copied = made.copy({made.epochs: 5})
    assert (copied.getEpochs(), made.getEpochs(), copied.getNumProc()) == (5, 1, 2)
    assert copied.setParams(epochs=None, batch_size=7) is copied
    assert (copied.getEpochs(), copied.getBatchSize(), made.getBatchSize()) == (1, 7, 32)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: TorchEstimator(epoch=2),
            ("TorchEstimator", "'epoch'", "'epochs'"),
        ),
        (lambda: TorchEstimator(epochs="two"), "epochs"),
        (
            lambda: TorchEstimator(num_proc=2, backend=Pool(1)),
            ('"backend"', '"num_proc"'),
        ),
        (
            lambda: TorchEstimator().setEpoch(2),
            ("TorchEstimator", "'setEpochs'"),
        ),
        (
            lambda: TorchEstimator().setParams(epoch=2),
            ("TorchEstimator", "'epoch'", "'epochs'"),
        ),
        (lambda: TorchEstimator(2), "positional"),
    ],
)
def test_a_parameter_that_does_not_exist_or_fit_is_named(
    call: Any, says: str | tuple[str, ...]
) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError), match=mentioning(says)):
        call()


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
            ("text", "numbers"),
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
        with pytest.raises(DataError, match=mentioning("column x")):
            wanted.transform(shouted)
        with pytest.raises(DataError, match=mentioning("column X")):
            estimator(feature_cols=["X"]).fit(rows)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_rows_that_spark_draws_anew_each_time_are_on_one_side(spark: Any, scratch: Path) -> None:
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


def test_fits_at_once_keep_the_rows_until_the_last_has_ended(spark: Any) -> None:
    drawn = F.udf(lambda: random.random(), "double").asNondeterministic()
    rows = spark.range(0, 50, 1, 2).withColumn("x", drawn())
    first, second = (computed_once(rows, ("x",), 0.4) for _ in range(2))
    with second as same:
        with first:
            found = sorted(same.collect())
        assert sorted(same.filter("x >= 0").collect()) == found
    assert not spark.sparkContext._jsc.getPersistentRDDs()


def test_what_a_program_keeps_stays_kept(spark: Any) -> None:
    rows = spark.range(0, 50, 1, 2).withColumn("x", F.rand())
    own = rows.select("x").persist()
    with computed_once(rows, ("x",), 0.4):
        pass
    assert own.storageLevel.useMemory
    own.unpersist()


def test_what_comes_out_otherwise_a_second_time(spark: Any, tmp_path: Path) -> None:
    """A sum of floating numbers depends on the order in which an exchange has them, in the last
    bit, by which rows would fall to both sides, or to none; on a cluster each computation has an
    order of its own.
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


def test_a_session_that_keeps_nothing_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    """As Databricks' serverless ones; they have no plan here, either."""
    frame = Mock(spec=["persist", "storageLevel"], storageLevel=StorageLevel.NONE)
    frame.persist.side_effect = RuntimeError("[NOT_SUPPORTED_WITH_SERVERLESS] PERSIST TABLE")
    assert may_vary(frame)
    with cached(frame) as found:
        assert found is frame
    assert mentions(caplog.text, "NOT_SUPPORTED_WITH_SERVERLESS", "PERSIST", "TABLE")


def test_other_columns_may_have_the_same_name(spark: Any) -> None:
    rows = frame(spark).selectExpr("*", "1 AS twice", "2 AS twice")
    made = estimator(epochs=1).fit(rows).transform(rows)
    assert made.columns == [*rows.columns, "y__output"]
    assert [row[:-1] for row in made.collect()] == [tuple(row) for row in rows.collect()]
    with pytest.raises(DataError, match=mentioning("column twice", "2")):
        estimator(feature_cols=["twice"]).fit(rows)


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
def test_weights_of_rows_that_are_none_are_told_before_training(
    spark: Any, weight: str, says: tuple[str, ...]
) -> None:
    rows = frame(spark).selectExpr("x", "y", "z", f"{weight} as w")
    wrong = rows.filter("z > 2").count()
    with pytest.raises(DataError, match=mentioning(*(each.format(wrong) for each in says))):
        estimator(sample_weight_col="w", backend=Never(1)).fit(rows)
    some = frame(spark).selectExpr("x", "y", "if(z > 1, 0, w) as w")
    with estimator(sample_weight_col="w")._written(some) as (data, _):
        assert data.rows == 61


def test_columns_with_nan_are_told_before_training(
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
    for told in (
        f"label column 'y' holds NaN or infinite numbers in {labels} of 61 rows",
        f"feature column 'x' holds NaN or infinite numbers in {arrays} of",
        f"feature column 'v' holds NaN or infinite numbers in {labels} of",
    ):
        assert told in caplog.text
    assert labels > arrays > 0
    caplog.clear()
    with made._written(rows.filter("k != 1 and z <= 2")):
        assert caplog.text == ""


def test_vectors_in_files_are_read_by_a_model(spark: Any, tmp_path: Path) -> None:
    rows = [(place, Vectors.dense([1.0, float(place), 0.0])) for place in range(5)]
    spark.createDataFrame(rows, ["place", "x"]).write.parquet(str(tmp_path / "vectors"))
    model = torch.nn.Linear(3, 1)
    trained = TorchModel(
        model=model, feature_columns=["x"], label_columns=["y"], _metadata={"outputs": [(1,)]}
    )
    found = trained.transform(spark.read.parquet(str(tmp_path / "vectors"))).collect()
    with torch.no_grad():
        expected = model(torch.tensor([row.x.toArray() for row in found]).float()).reshape(-1)
    assert len(found) == 5
    np.testing.assert_allclose([row.y__output for row in found], expected, rtol=1e-6)
    beside = trained.setFeatureCols(["n"]).setModel(torch.nn.Linear(1, 1))
    named = spark.read.parquet(str(tmp_path / "vectors")).withColumn(
        "n", F.coalesce("place", F.lit(0)) * 1.0
    )
    assert beside.transform(named).filter("place > 1").count() == 3
    assert {row.place for row in beside.transform(named).filter("place > 1").collect()} == {2, 3, 4}


def test_a_null_that_a_model_is_given_is_named_by_its_column(spark: Any) -> None:
    model = TorchModel(
        model=net(1, inputs=1),
        feature_columns=["z"],
        label_columns=["y"],
        _metadata={"outputs": [(1,)]},
    )
    with pytest.raises(
        Exception,
        match=mentioning("'z'", "data_options"),
    ):
        model.transform(
            spark.sql("select if(id = 3, null, double(id)) as z from range(5)")
        ).collect()
    values = [(Vectors.dense([float(id)]) if id != 3 else None, 1.0) for id in range(5)]
    vectors = spark.createDataFrame(values, ["z", "y"])
    with pytest.raises(Exception, match="column 'z': null"):
        model.transform(vectors).collect()
    with pytest.raises(DataError, match=mentioning("'z'", "1", "data_options")):
        estimator(net(1, inputs=1), feature_cols=["z"], backend=Never(1)).fit(vectors)


def test_text_in_place_of_numbers_fails_before_spark_computes(spark: Any) -> None:
    rows = frame(spark)
    model = estimator(net(1, inputs=1), feature_cols=["z"], input_shapes=[[-1, 1]], epochs=1).fit(
        rows
    )
    with pytest.raises(DataError, match=mentioning("column z", "text")):
        model.transform(rows.selectExpr("string(z) as z", "y"))


def test_too_few_task_slots_are_told_before_spark_computes(spark: Any) -> None:
    computed = spark.sparkContext.accumulator(0)
    rows = frame(spark).withColumn("y", F.udf(lambda y: computed.add(1) or y, "double")("y"))
    with pytest.raises(SettingsError, match=mentioning("np=99", "task")):
        estimator(num_proc=99, backend=None).fit(rows)
    assert computed.value == 0
