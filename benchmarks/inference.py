"""Predictions as a column of a Spark DataFrame, with two tasks on this machine: Farandole's,
``predict_batch_udf``'s, and row by row, as with Horovod's estimators.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.samples import OURS, PREDICT_BATCH, ROW_BY_ROW, Case, interleave

REPETITIONS = 5
QUICK_ROWS = 2_000
TASKS = 2
BATCH = 256


class Work(NamedTuple):
    """``rows`` of arrays of ``shape``, for the model from ``make``. ``by_row``: whether predicting
    row by row takes a reasonable time.
    """

    name: str
    rows: int
    shape: tuple[int, ...]
    make: Callable[[], Any]
    by_row: bool = False


def mlp() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def conv() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )


WORKS = (
    Work("small MLP", 100_000, (16,), mlp, by_row=True),
    Work("small MLP", 1_000_000, (16,), mlp),
    Work("conv net, images 28x28", 10_000, (1, 28, 28), conv, by_row=True),
    Work("conv net, images 28x28", 100_000, (1, 28, 28), conv),
)


def cases(quick: bool) -> Iterator[Case]:
    with session() as (spark, folder):
        for work in WORKS[::2] if quick else WORKS:
            chosen = work._replace(rows=QUICK_ROWS) if quick else work
            frame = data(spark, folder, chosen, TASKS)
            turns = contenders(chosen, frame)
            check({name: predictions(turn()) for name, turn in turns.items()}, chosen.rows)
            samples = interleave(
                {name: computed(turn) for name, turn in turns.items()},
                repetitions=1 if quick else REPETITIONS,
            )
            frame.unpersist()
            yield Case("inference", f"{chosen.name}, {chosen.rows} rows", samples)


@contextlib.contextmanager
def session() -> Iterator[tuple[Any, Path]]:
    """Provide Spark with two tasks on this machine, and a folder."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder.master(f"local[{TASKS}]").appName("farandole bench")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    folder = Path(tempfile.mkdtemp(prefix="farandole-bench-"))
    try:
        yield spark, folder
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def data(spark: Any, folder: Path, work: Work, partitions: int) -> Any:
    """Return the rows, which Spark caches in memory."""
    path = folder / f"{work.name}-{work.rows}"
    if not path.exists():
        write(path, work.rows, work.shape)
    return spark.read.parquet(str(path)).repartition(partitions).cache()


def contenders(work: Work, frame: Any) -> dict[str, Callable[[], Any]]:
    """Return functions that return lazy DataFrames with the columns ``id`` and ``y``."""
    import torch
    from pyspark import cloudpickle
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    from farandole.inference import predict_udf

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers may not have this file
    torch.manual_seed(0)
    model, shape, make = work.make().eval(), work.shape, work.make
    state = {name: value.numpy() for name, value in model.state_dict().items()}

    def opened() -> Any:
        import torch

        torch.set_num_threads(1)
        found = make()
        found.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
        return found.eval()

    def make_predict() -> Any:
        import torch

        found = opened()

        def predict(x: Any) -> Any:
            with torch.inference_mode():
                return found(torch.from_numpy(x)).numpy()

        return predict

    def rows(partition: Iterator[Any]) -> Iterator[Any]:
        import torch
        from pyspark.sql import Row

        found = opened()
        for row in partition:
            with torch.no_grad():
                x = torch.tensor(np.array([row.x], np.float32).reshape(1, *shape))
                yield Row(**row.asDict(), y=found(x).numpy()[0].tolist())

    kind = ArrayType(FloatType())
    schema = frame.schema.add("y", kind)
    ours = predict_udf(model, batch_size=BATCH, shapes=[shape])
    theirs = predict_batch_udf(
        make_predict, return_type=kind, batch_size=BATCH, input_tensor_shapes=[list(shape)]
    )
    found = {
        OURS: lambda: frame.withColumn("y", ours("x")),
        PREDICT_BATCH: lambda: frame.withColumn("y", theirs("x")),
        ROW_BY_ROW: lambda: frame.sparkSession.createDataFrame(
            frame.rdd.mapPartitions(rows), schema
        ),
    }
    return found if work.by_row else {name: found[name] for name in (OURS, PREDICT_BATCH)}


def computed(turn: Callable[[], Any]) -> Callable[[], None]:
    return lambda: turn().write.format("noop").mode("overwrite").save()


def predictions(frame: Any) -> Any:
    """Return all predictions, by id: the transfer through JVM and Python is the same for all
    contenders.
    """
    table = frame.select("id", "y").toPandas().sort_values("id")
    return table["id"].to_numpy(), np.stack(table["y"].to_list())


def check(found: dict[str, Any], rows: int) -> None:
    """Check that predictions are equal, up to the rounding of different batches."""
    for name, (ids, values) in found.items():
        assert ids.tolist() == list(range(rows)), f"{name}: {len(ids)} rows instead of {rows}"
        np.testing.assert_allclose(values, found[OURS][1], rtol=1e-4, atol=1e-5, err_msg=name)


def write(path: Path, rows: int, shape: tuple[int, ...]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    width = int(np.prod(shape))
    values = np.random.default_rng(0).random(rows * width, np.float32)
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * np.int32(width))
    path.mkdir()
    table = pa.table({"id": np.arange(rows), "x": pa.ListArray.from_arrays(offsets, values)})
    pq.write_table(table, path / "part.parquet", row_group_size=max(1, rows // (4 * TASKS)))
