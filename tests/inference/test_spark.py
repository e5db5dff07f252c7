"""Predictions as columns of DataFrames, on two executors."""

from __future__ import annotations

import os
import warnings
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning

pytest.importorskip("pyarrow")
torch = pytest.importorskip("torch")

from pyspark.errors import PythonException  # noqa: E402
from pyspark.ml.linalg import Vectors, VectorUDT  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402
from pyspark.sql.types import StructField, StructType  # noqa: E402

from farandole.errors import SettingsError  # noqa: E402
from farandole.inference import predict_parquet, predict_udf, transform  # noqa: E402
from farandole.inference.spark.task import device_of  # noqa: E402
from farandole.inference.spark.udf import _sent, unused  # noqa: E402


def numbers(spark: Any, rows: int = 1000, partitions: int = 2) -> Any:
    return spark.range(0, rows, 1, partitions)


def test_batches_have_the_models_size_across_arrow_batches(spark: Any) -> None:
    sizes = predict_udf(lambda x: np.full(len(x), len(x)), returns="int", batch_size=300)
    found = (
        numbers(spark)
        .repartition(2)
        .select("id", sizes("id").alias("rows"))
        .groupBy("rows")
        .count()
        .collect()
    )
    assert {row["rows"]: row["count"] for row in found} == {300: 600, 200: 400}


def test_spark_warns_of_nothing_that_the_program_has_not_written(spark: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        predict_udf(lambda x: x, returns="double")


def test_a_torch_module_gives_what_it_gives_without_spark(spark: Any) -> None:
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    ).eval()
    frame = numbers(spark).withColumn(
        "x", F.array(*(F.sin(F.col("id") * number) for number in (1, 2, 3)))
    )
    rows = (
        transform(frame, module, inputs="x", output="scores", batch_size=64).orderBy("id").collect()
    )
    assert [row.id for row in rows] == list(range(1000))
    with torch.inference_mode():
        expected = module(torch.tensor([row.x for row in rows], dtype=torch.float32)).numpy()
    np.testing.assert_allclose([row.scores for row in rows], expected, atol=1e-6)


def test_each_row_is_predicted_once_for_a_struct_of_columns(spark: Any) -> None:
    def model(a: Any, b: Any) -> Any:
        drawn = np.random.default_rng().random(len(a))
        return {"sum": a + b, "pair": np.stack([drawn, b], axis=1), "drawn": drawn}

    # as our own column for the struct would be called
    own = {unused(spark.range(1)).upper(): F.lit(7)}
    frame = numbers(spark, 300, 3).withColumns({"b": F.lit(0.5), "dotted.name": F.col("id"), **own})
    found = transform(
        frame,
        model,
        inputs=["dotted.name", "b"],
        output=["total", "d.rawn", "pair"],
        returns="sum double, drawn double, pair array<double>",
    )
    assert found.columns == ["id", "b", "dotted.name", *own, "total", "d.rawn", "pair"]
    for row in found.collect():
        assert row["total"] == row["id"] + 0.5
        assert row["pair"] == [row["d.rawn"], 0.5], "two calls would have drawn two numbers"


def test_a_filter_on_errors_does_not_change_which_rows_fail(spark: Any) -> None:
    lists = F.when(F.col("id") == 3, F.array(F.lit(1))).otherwise(F.array("id", "id"))
    frame = numbers(spark, 50, 1).withColumn("x", lists)
    found = transform(frame, lambda x: x.sum(axis=1), inputs="x", returns="bigint", errors="column")
    (failed,) = found.filter("prediction_error IS NOT NULL").collect()
    assert (failed.id, failed.prediction) == (3, None)
    assert "a list of 1, but shape (2,) needs 2" in failed.prediction_error
    assert found.filter("prediction_error IS NULL").count() == 49


def test_columns_are_also_fields_of_structs(spark: Any) -> None:
    frame = numbers(spark, 3).select(
        "id", F.struct(F.col("id").alias("b"), F.lit(0.5).alias("c d")).alias("a")
    )
    found = transform(
        frame, lambda x, y: x + y, inputs=["a.b", "A.`c d`"], returns="double", key="a.b"
    ).collect()
    assert [row["prediction"] for row in found] == [0.5, 1.5, 2.5]


def test_rows_that_fail(spark: Any) -> None:
    def model(x: Any) -> Any:
        if (x == 77).any():
            raise ArithmeticError("no such age")
        return x + 1

    frame = numbers(spark, 200).select(
        F.concat(F.lit("row "), "id").alias("name"),
        F.when(F.col("id") != 150, F.col("id")).alias("x"),
    )
    kept = transform(
        frame, model, inputs="x", output="y", returns="bigint", key="name", errors="column"
    )
    assert kept.columns == ["name", "x", "y", "y_error"]
    rows = {row["name"]: row for row in kept.collect()}
    failed = {name for name, row in rows.items() if row["y"] is None}
    assert (len(rows), failed) == (200, {"row 77", "row 150"})
    assert rows["row 77"]["y_error"] == "ArithmeticError: no such age"
    assert "null" in rows["row 150"]["y_error"]
    assert [rows[f"row {number}"]["y"] for number in (0, 76, 199)] == [1, 77, 200]
    assert rows["row 0"]["y_error"] is None
    with pytest.raises(PythonException, match=mentioning("'row 77'")):
        transform(frame.limit(100), model, inputs="x", returns="bigint", key="name").collect()


def test_vectors_dense_and_sparse_are_arrays_and_null_ones_fail(spark: Any) -> None:
    rows = [(Vectors.dense([1.0, 2.0, 3.0]),), (None,), (Vectors.sparse(3, {1: 5.0}),), (None,)]
    frame = spark.createDataFrame(rows, StructType([StructField("features", VectorUDT())]))
    # rows that Spark hands over at once: types must not depend on what is among them
    for chunk in (1, 2, 100):
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", chunk)
        kept = transform(
            frame.coalesce(1),
            lambda x: x * 2,
            inputs="features",
            returns="array<double>",
            errors="column",
        )
        found = kept.collect()
        assert [row["prediction"] for row in found] == [
            [2.0, 4.0, 6.0],
            None,
            [0.0, 10.0, 0.0],
            None,
        ]
        assert ["null" in (row["prediction_error"] or "") for row in found] == [
            False,
            True,
            False,
            True,
        ]


def test_a_model_is_opened_once_in_each_worker(spark: Any, tmp_path: Path) -> None:
    def load() -> Any:
        with open(tmp_path / "opened", "a") as file:
            file.write(f"{os.getpid()}\n")
        return lambda x: x

    predict = predict_udf(load, returns="bigint")
    for _ in range(3):
        assert (
            numbers(spark, 100, 4)
            .select(predict("id").alias("x"))
            .groupBy()
            .sum("x")
            .collect()[0][0]
            == 4950
        )
    opened = (tmp_path / "opened").read_text().split()
    assert sorted(opened) == sorted(set(opened))


def test_garbage_collection_skips_what_was_loaded_for_the_model(
    spark: Any,
) -> None:
    def model(x: Any) -> Any:
        import gc

        return np.full(len(x), len(gc.get_objects()))

    (found,) = (
        numbers(spark, 10, 1)
        .select(predict_udf(model, returns="int")("id").alias("objects"))
        .limit(1)
        .collect()
    )
    assert found.objects < 20_000, "pyspark, pandas and pyarrow alone have five times as many"


def test_a_killed_worker_and_executor_cost_and_double_no_row(spark: Any, tmp_path: Path) -> None:
    def first(name: str) -> bool:
        try:
            (tmp_path / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def model(x: Any) -> Any:
        import psutil

        worker = psutil.Process()
        if (x == 300).any() and first("worker"):
            worker.kill()
        if (x == 850).any() and first("executor"):
            next(each for each in worker.parents() if each.name() == "java").kill()
        return x

    predict = predict_udf(model, returns="bigint", batch_size=100)
    out = str(tmp_path / "out.parquet")
    numbers(spark, 1000, 4).select("id", predict("id").alias("x")).write.parquet(out)
    rows = spark.read.parquet(out).collect()
    assert (tmp_path / "worker").exists()
    assert (tmp_path / "executor").exists()
    assert sorted((row["id"], row["x"]) for row in rows) == [
        (number, number) for number in range(1000)
    ]


def test_rows_do_not_pile_up_in_the_worker(spark: Any) -> None:
    def model(x: Any) -> Any:
        with open("/proc/self/status") as file:
            peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
        return np.full(len(x), peak)

    # 200 MB
    frame = spark.range(0, 25_000, 1, 1).select(
        F.array_repeat(F.col("id").cast("double"), 1024).alias("x")
    )
    peaks = transform(frame, model, inputs="x", returns="bigint").agg(
        F.min("prediction"), F.max("prediction")
    )
    first, last = peaks.collect()[0]
    assert last - first < 100 << 10


def test_null_is_not_nan_and_keeps_the_type_of_its_column(spark: Any) -> None:
    """Also in predictions. Spark before 4.1 passes columns converted by pandas."""
    rows = spark.createDataFrame(
        [(1.0, 1), (float("nan"), 2), (None, None)], "x double, n int"
    ).coalesce(1)

    def model(x: Any, n: Any) -> Any:
        assert n.dtype == np.int32
        return x + n

    kept = transform(rows, model, inputs=["x", "n"], returns="double", errors="column").collect()
    assert [row["prediction"] for row in (kept[0], kept[2])] == [2.0, None]
    assert np.isnan(kept[1]["prediction"])
    assert "null" in kept[2]["prediction_error"]


def test_null_in_a_list_does_not_change_its_type(spark: Any) -> None:
    kinds = {
        "int": np.int32,
        "bigint": np.int64,
        "smallint": np.int16,
        "boolean": np.bool_,
        "double": np.float64,
    }
    values = [(True, 1.0), (None, 1.0), None]
    rows = spark.createDataFrame(
        [(each,) for each in values], "x struct<a:boolean,b:double>"
    ).coalesce(1)
    rows = rows.select(
        *(
            F.expr(f"if(x is null, null, array(cast(x.a as {name}), cast(x.b as {name})))").alias(
                name
            )
            for name in kinds
        )
    )

    def model(*arrays: Any) -> Any:
        assert [each.dtype for each in arrays] == [*kinds.values()]
        return arrays[1]

    fill = dict.fromkeys(kinds, 0) | {"boolean": False}
    found = transform(rows, model, inputs=[*kinds], fill=fill, returns="array<bigint>").collect()
    assert [row.prediction for row in found] == [[1, 1], [0, 1], [0, 0]]
    deep = spark.createDataFrame([([[1, None]],), ([[3, 4]],)], "x array<array<int>>").coalesce(1)
    found = transform(
        deep, lambda x: x[:, 0], inputs="x", fill={"x": 0}, returns="array<int>"
    ).collect()
    assert [row.prediction for row in found] == [[1, 0], [3, 4]]


@pytest.mark.parametrize("kind", ["bigint", "array<bigint>"])
def test_large_integers_next_to_null_are_exact_or_an_error(spark: Any, kind: str) -> None:
    large = 2**53 + 1
    rows = spark.createDataFrame([(large,), (None,)], "x bigint").coalesce(1)
    rows = rows if kind == "bigint" else rows.select(F.array("x").alias("x"))
    found = transform(rows, lambda x: x.reshape(-1), inputs="x", fill={"x": 0}, returns="bigint")
    if hasattr(F, "arrow_udf"):
        assert [row.prediction for row in found.collect()] == [large, 0]
    else:
        with pytest.raises(
            PythonException,
            match=mentioning("'x'", "2^53"),
        ):
            found.collect()
        keyed = rows.select("x", F.lit(1).alias("n"))
        found = transform(keyed, lambda n: n, inputs="n", key="x", returns="int").collect()
        assert [row.prediction for row in found] == [1, 1]


@pytest.mark.parametrize("errors", ["raise", "column"])
def test_nan_in_lists_and_structs_of_predictions_is_not_null(spark: Any, errors: str) -> None:
    """Spark before 4.1 converts pandas columns to Python lists, where NaN is null."""
    rows = spark.createDataFrame([(1.0,), (float("nan"),), (-1.0,)], "x double").coalesce(1)
    rows = rows if errors == "column" else rows.filter("x > 0 OR isnan(x)")

    def model(x: Any) -> Any:
        if (x < 0).any():
            raise ValueError("below 0")
        return {
            "two": np.stack([x, 2 * x], 1),
            "deep": {"three": np.stack([x] * 3, 1), "n": np.full(len(x), 2**53 + 1)},
        }

    kind = "struct<two:array<double>,deep:struct<three:array<double>,n:bigint>>"
    found = transform(rows, model, inputs="x", returns=kind, errors=errors).collect()
    plain = transform(
        rows, lambda x: model(x)["two"], inputs="x", returns="array<double>", errors=errors
    ).collect()
    for place, value in enumerate((1.0, float("nan"))):
        row = found[place]["prediction"]
        np.testing.assert_array_equal(np.array(row["two"], float), [value, 2 * value])
        np.testing.assert_array_equal(np.array(row["deep"]["three"], float), [value] * 3)
        assert None not in (*row["two"], *row["deep"]["three"], *plain[place]["prediction"])
        assert row["deep"]["n"] == 2**53 + 1
        np.testing.assert_array_equal(
            np.array(plain[place]["prediction"], float), [value, 2 * value]
        )
    assert [row["prediction"] for row in (*found[2:], *plain[2:])] == [None] * (
        2 * (errors == "column")
    )


def test_decimals_whose_digits_differ_from_chunk_to_chunk(spark: Any) -> None:
    """Arrow chooses the digits of decimals by the values of a pandas column."""
    small, large = Decimal("1.23"), Decimal("12345678.90")
    numbers = [small] * 100 + [large] * 50 + [None] * 50 + [large]  # a chunk has 100
    rows = spark.createDataFrame(
        [(each, [large if each is None else each]) for each in numbers],
        "d decimal(10,2), l array<decimal(10,2)>",
    ).coalesce(1)
    found = transform(
        rows, lambda one, many: one + many[:, 0], inputs=["d", "l"], fill={"d": 7}, returns="double"
    ).collect()
    expected = [float(large) + 7 if each is None else 2 * float(each) for each in numbers]
    assert [row["prediction"] for row in found] == expected


def test_columns_of_nulls_in_a_chunk_have_their_type(spark: Any) -> None:
    """pandas has no type for such a column, and the first chunk determines the types. A chunk has
    100 rows.
    """
    kinds = "s string, b boolean, d decimal(5,2), l array<int>, r binary"
    given = ("a", False, Decimal("1.30"), [1, 2], b"\1\2")
    rows = spark.createDataFrame([(None,) * 5] * 150 + [given], kinds).coalesce(1)

    def model(s: Any, b: Any, d: Any, many: Any, r: Any) -> Any:
        return [
            f"{text}{bool(flag)}{number:.2f}{two.tolist()}{raw.tolist()}"
            for text, flag, number, two, raw in zip(s, b, d, many, r, strict=True)
        ]

    options: dict[str, Any] = {
        "fill": {"s": "?", "b": True, "d": Decimal(7), "l": 8, "r": 9},
        "returns": "string",
    }
    shapes = {"l": (2,), "r": (2,)}
    found = transform(rows, model, inputs=list("sbdlr"), shapes=shapes, **options).collect()
    expected = ["?True7.00[8, 8][9, 9]"] * 150 + ["aFalse1.30[1, 2][1, 2]"]
    assert [row["prediction"] for row in found] == expected


def test_functions_for_sql_and_columns_of_text(spark: Any) -> None:
    def model(x: Any, n: Any) -> Any:
        return {"total": x.sum(axis=(1, 2)) + n, "half": x[:, 0] / 2}

    options: dict[str, Any] = {
        "returns": "total double, half array<double>",
        "shapes": [(2, 2), None],
    }
    query = (
        "SELECT p.total, p.half FROM (SELECT predict(array(id, 1, 2, 3), id) AS p FROM range(3))"
    )
    spark.udf.register("predict", predict_udf(model, **options))
    expected = [(6 + 2 * number, [number / 2, 0.5]) for number in range(3)]
    assert sorted(map(tuple, spark.sql(query).collect())) == expected
    frame = spark.createDataFrame(
        [(Vectors.dense([1.0]), "a"), (Vectors.dense([2.0]), None)], ["v", "s"]
    )
    large = 2**53 + 1

    def ids(v: Any, s: Any) -> Any:
        return v[:, 0].astype(int) + large

    kept = transform(frame.coalesce(1), ids, inputs=["v", "s"], returns="bigint", errors="column")
    first, second = kept.orderBy("s").collect()
    assert (first["prediction"], second["prediction"]) == (None, large + 1)
    assert "null" in first["prediction_error"]


def test_keras_models_tell_their_types_and_images_are_decoded(spark: Any) -> None:
    keras = pytest.importorskip("keras")
    image, weight = keras.Input((2, 2, 1), name="image"), keras.Input((1,), name="weight")
    summed = keras.layers.GlobalAveragePooling2D()(image)
    model = keras.Model(
        [image, weight], [keras.layers.Multiply(name="product")([summed, weight]), summed]
    )
    frame = spark.createDataFrame(
        [(bytes([4, 4, 4, row]), [2.0]) for row in range(0, 40, 4)], ["image", "weight"]
    )
    frame = frame.coalesce(1)  # one worker has to import Keras
    decode = {
        "image": lambda value: np.frombuffer(value, np.uint8).reshape(2, 2, 1).astype("float32")
    }
    found = transform(
        frame,
        model,
        inputs=["weight", "image"],
        output=["product", "mean"],
        decode=decode,
        batch_size=4,
    ).collect()
    assert [(row["product"], row["mean"]) for row in found] == [
        (2 * (3 + row), 3 + row) for row in range(10)
    ]


def test_the_benchmarks_compare_equal_predictions(spark: Any, tmp_path: Path) -> None:
    from benchmarks import inference as benchmark
    from benchmarks import tuning

    benchmark.write(tmp_path / "data", 300, (16,))
    frame = spark.read.parquet(str(tmp_path / "data")).coalesce(1)
    turns = benchmark.contenders(benchmark.WORKS[0], frame)
    found = {name: benchmark.predictions(turn()) for name, turn in turns.items()}
    assert len(found) == 3
    before = spark.conf.get(tuning.ARROW)
    tuned = tuning.turn(
        spark, frame, benchmark.WORKS[0], tuning.Setting(batch=64, arrow=50, threads=2)
    )
    found["tuned"] = benchmark.predictions(tuned())
    spark.conf.set(tuning.ARROW, before)
    benchmark.check(found, 300)


def test_spark_connect_sends_the_model_along(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may be in this process: its functions do not find values broadcast here."""
    assert _sent(b"model").value == b"model"
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    assert _sent(b"model") == b"model"


def test_a_task_computes_on_the_gpu_that_spark_gave_to_it() -> None:
    def context(*addresses: str) -> Any:
        return SimpleNamespace(
            resources=lambda: {"gpu": SimpleNamespace(addresses=addresses)} if addresses else {}
        )

    assert [device_of(context("3", "4")), device_of(context())] == ["cuda:3", "cpu"]


def test_invalid_options_raise_on_the_driver() -> None:
    with pytest.raises(SettingsError, match=mentioning("errors='ignore'", "'raise'", "'column'")):
        predict_udf(len, errors="ignore")
    with pytest.raises(SettingsError, match=mentioning("batch_size=0")):
        predict_udf(len, batch_size=0)
    with pytest.raises(SettingsError, match=mentioning("shapes=[(1,)]", "1", "2", "(a, b)")):
        predict_udf(len, inputs=["a", "b"], shapes=[(1,)])
    with pytest.raises(ValueError, match=mentioning("'c'", "column")):
        predict_udf(len, inputs=["a"], shapes={"c": (1,)})
    with pytest.raises(SettingsError, match=mentioning("2", "returns='float'", "0")):
        transform(None, len, inputs="a", output=["b", "c"], returns="float")


def test_files_of_predictions_keep_the_columns_metadata_of_spark(
    spark: Any, tmp_path: Path
) -> None:
    rows = [
        (number, Vectors.dense([number, 1.0]), Vectors.sparse(3, {1: 2.0}), f"n{number}")
        for number in range(6)
    ]
    frame = spark.createDataFrame(rows, ["id", "v", "s", "name"]).withMetadata(
        "name", {"comment": "whose"}
    )
    frame.coalesce(1).write.partitionBy("id").parquet(f"file://{tmp_path}/in")
    model = lambda x: {"sum": x.sum(axis=1), "all": x}  # noqa: E731
    predict_parquet(
        model,
        tmp_path / "in",
        tmp_path / "out",
        inputs="v",
        returns="sum double, all array<float>",
        errors="column",
        np=1,
    )
    found = spark.read.parquet(f"file://{tmp_path}/out")
    kinds = {field.name: field.dataType.simpleString() for field in found.schema}
    assert kinds == {
        "v": "vector",
        "s": "vector",
        "name": "string",
        "id": "int",
        "prediction": "struct<sum:double,all:array<float>>",
        "prediction_error": "string",
    }
    assert found.schema["name"].metadata == {"comment": "whose"}
    for row in found.collect():
        assert (row.v, row.s) == (Vectors.dense([row.id, 1.0]), Vectors.sparse(3, {1: 2.0}))
        assert (row.prediction.sum, row.prediction.all) == (row.id + 1, [row.id, 1.0])
