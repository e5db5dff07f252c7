"""A reader for Keras and tf.data: ``fit`` sees each row once per epoch, with any shuffling."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole.data import ParquetData, from_parquet
from farandole.errors import SettingsError
from tests.kits.messages import mentioning

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")


@pytest.fixture
def data(tmp_path: Path) -> ParquetData:
    rows = np.arange(10)
    table = pa.table(
        {"x": rows.astype("f4"), "y": rows, "w": np.ones(10, "f4"), "t": [str(row) for row in rows]}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    return from_parquet(str(tmp_path), features="x", labels="y", weight="w")


class Seen(keras.layers.Layer):  # type: ignore[misc]
    """Records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[float] = []
        self.factor = self.add_weight()

    def call(self, x: Any) -> Any:
        if tf.executing_eagerly():
            self.rows += np.asarray(x).reshape(-1).tolist()
        return self.factor * x


@pytest.mark.parametrize("form", ["keras", "tensorflow"])
def test_fit_and_evaluate_see_each_row_once_in_an_epoch(data: ParquetData, form: str) -> None:
    layer = Seen()
    model = keras.Sequential([keras.Input(()), layer])
    model.compile("sgd", "mse", run_eagerly=True)
    batches = getattr(data, form)(4, rank=0, size=1)
    assert len(batches) == 3
    layer.rows = []
    model.fit(batches, epochs=3, verbose=0)
    epochs = [layer.rows[begin : begin + 10] for begin in (0, 10, 20)]
    assert [sorted(rows) for rows in epochs] == [[*range(10)]] * 3
    expected = data.numpy(4, rank=0, size=1)
    assert epochs == [[x for batch in expected for x in batch[0].tolist()] for _ in range(3)]
    assert batches.reader.epoch == 3
    layer.rows = []
    model.evaluate(batches, verbose=0)
    assert sorted(layer.rows) == [*range(10)]


class Seeing(keras.Model):  # type: ignore[misc]
    """Not built before fit(), which looks at a batch for that; fit() shuffles the numbers of
    batches by default.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen: list[int] = []

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, *given: Any) -> dict[str, float]:  # JAX has another signature
        self.seen += keras.ops.convert_to_numpy(given[-1][1]).astype(int).tolist()
        return {"loss": 0.0}


def seeing(tmp_path: Path) -> tuple[Seeing, ParquetData]:
    table = pa.table({"x": [[float(row)] for row in range(101)], "y": range(101)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=9)
    model = Seeing()
    model.compile("sgd", "mse", run_eagerly=True)
    return model, from_parquet(str(tmp_path / "rows.parquet"), features="x", labels="y")


def each_row_once(folder: Path) -> None:
    for seed, steps in [*((seed, None) for seed in range(5)), (5, 1), (6, 2)]:
        random.seed(seed)
        model, rows = seeing(folder)
        model.fit(
            rows.keras(10),
            epochs=3 if steps is None else 3 * -(-11 // steps),
            steps_per_epoch=steps,
            verbose=0,
        )
        rounds = [
            sorted(model.seen[begin : begin + 101]) for begin in range(0, len(model.seen), 101)
        ]
        assert rounds[:3] == [list(range(101))] * 3


def test_a_model_that_is_built_by_fit_sees_each_row_once(tmp_path: Path) -> None:
    each_row_once(tmp_path)
    program = (
        "import sys; from pathlib import Path; from tests.data.parquet.feeds import test_keras"
        " as t; "
    )
    run = [sys.executable, "-c", program + "t.each_row_once(Path(sys.argv[1]))", str(tmp_path)]
    # where Keras itself asks for batches
    subprocess.run(run, env={**os.environ, "KERAS_BACKEND": "torch"}, check=True)


def test_workers_of_keras_are_an_error(tmp_path: Path) -> None:
    model, rows = seeing(tmp_path)
    batches = rows.keras(10)
    batches.workers = 3
    with pytest.raises(SettingsError, match=mentioning("workers=3", "use_multiprocessing=False")):
        model.fit(batches, verbose=0)


def test_steps_per_epoch_continue_in_the_epoch_of_the_rows(data: ParquetData) -> None:
    layer = Seen()
    model = keras.Sequential([keras.Input(()), layer])
    model.compile("sgd", "mse", run_eagerly=True)
    batches = data.keras(2, rank=0, size=1)
    layer.rows = []
    # the third one has what is left of five
    model.fit(batches, epochs=3, steps_per_epoch=2, verbose=0)
    assert sorted(layer.rows) == [*range(10)]


def test_an_abandoned_loop_restarts(data: ParquetData) -> None:
    batches = data.keras(4, rank=0, size=1)
    first = batches[1][1].tolist()
    assert batches[1][1].tolist() == first  # Keras looks at some, and asks again
    rest = batches[0][1].tolist() + batches[2][1].tolist()
    assert sorted(first + rest) == [*range(10)]
    assert batches[2][1].tolist() != rest[4:]  # the next epoch
    batches.on_epoch_end()
    assert batches.reader.state_dict()["position"] == 4
    from farandole.keras.data import _part

    assert _part(batches, 0, 2, True) is batches  # it is dealt already


def test_the_elements_of_tf_data(tmp_path: Path, data: ParquetData) -> None:
    text = from_parquet(str(tmp_path), columns=["t", "x"]).tensorflow(
        10, rank=0, size=1, shuffle=False
    )
    assert text.element_spec == {
        "t": tf.TensorSpec((None,), tf.string),
        "x": tf.TensorSpec((None,), tf.float32),
    }
    assert next(iter(text))["t"].numpy().tolist() == [str(row).encode() for row in range(10)]
    weighted = from_parquet(str(tmp_path), features="x", labels="y").tensorflow(
        8, even="weights", rank=0, size=2
    )
    (found,) = list(weighted)
    assert found[2].numpy().tolist() == pytest.approx([1.6] * 5 + [0] * 3)
