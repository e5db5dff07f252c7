"""Estimators in Spark ML: Params, Pipeline, CrossValidator, write and read, predictions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cloudpickle
import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import Vectors
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit
from pyspark.sql import functions as F

from farandole.data import Store, written_frames
from farandole.errors import DataError, SettingsError
from farandole.estimators import TorchEstimator, TorchModel
from farandole.estimators.spark.param_grid import ParamGridFits
from farandole.estimators.spark.persistence import public
from tests.estimators.tools import Never, Pool, frame
from tests.estimators.torch_tools import estimator, net, weights
from tests.kits.messages import mentioning


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


def test_data_are_in_the_folder_of_the_session_or_the_store(
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
    # Spark's other threads would take the end of the iterator for the end of their work
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


def test_other_columns_may_have_the_same_name(spark: Any) -> None:
    rows = frame(spark).selectExpr("*", "1 AS twice", "2 AS twice")
    made = estimator(epochs=1).fit(rows).transform(rows)
    assert made.columns == [*rows.columns, "y__output"]
    assert [row[:-1] for row in made.collect()] == [tuple(row) for row in rows.collect()]
    with pytest.raises(DataError, match=mentioning("twice", "2")):
        estimator(feature_cols=["twice"]).fit(rows)


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
    with pytest.raises(DataError, match=mentioning("z", "text")):
        model.transform(rows.selectExpr("string(z) as z", "y"))


def test_too_few_task_slots_are_reported_before_spark_computes(spark: Any) -> None:
    computed = spark.sparkContext.accumulator(0)
    rows = frame(spark).withColumn("y", F.udf(lambda y: computed.add(1) or y, "double")("y"))
    with pytest.raises(SettingsError, match=mentioning("np=99", "task")):
        estimator(num_proc=99, backend=None).fit(rows)
    assert computed.value == 0
