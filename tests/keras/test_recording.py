"""The records of ``fit`` in a run: samples, steps and settings, with and without a distributed
optimizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import farandole
from farandole.job.runs.folder import RUN_VARIABLE, RunFolder
from farandole.jobs import metrics
from tests.keras.backends import QUICK


def train(*, epochs: int, wrap: bool) -> None:
    """Train on 100 rows in batches of eight, and validate on 20."""
    import keras
    import numpy as np

    import farandole.keras as hvd

    hvd.init()
    random = np.random.default_rng(0)
    x, y = random.normal(size=(100, 30)), np.arange(100) % 2
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.125)
    model.compile(hvd.DistributedOptimizer(optimizer, shard=True) if wrap else optimizer, "mse")
    model.fit(
        x,
        y,
        batch_size=8,
        epochs=epochs if wrap else epochs // hvd.size(),
        validation_data=(x[:20], y[:20]),
        verbose=0,
    )


@pytest.mark.slow
def test_mistakes_are_recorded_within_20_steps(tmp_path: Path) -> None:
    run = RunFolder(str(tmp_path / "e_1_00000000"))
    farandole.run(
        train,
        kwargs={"epochs": 4, "wrap": False},
        np=2,
        env={RUN_VARIABLE: run.path, "KERAS_BACKEND": QUICK},
    )
    for rank in (0, 1):
        last = metrics.last_values(run, rank, automatic=True)
        assert last["training/steps"] == 2 * 13
        assert last["training/samples"] == 2 * 100
        assert last["training/epochs"] == 2
        assert metrics.names(run, rank) == ["loss", "val_loss"]
    codes = [each["code"] for each in metrics.logged(run, "finding")]
    assert codes == ["FAR012", "FAR027"]
    settings = _settings(run)
    assert settings["models"] == 1
    assert settings["batch_size"] == 8
    assert settings["learning_rate"] == 0.125
    assert settings["validation_rows"] == 20
    assert settings["data"] == _settings(run, 1)["data"]


@pytest.mark.slow
def test_samples_of_one_process_and_of_two(tmp_path: Path) -> None:
    totals = []
    for size in (1, 2):
        run = RunFolder(str(tmp_path / f"e_{size}_00000000"))
        env = {RUN_VARIABLE: run.path, "KERAS_BACKEND": QUICK}
        farandole.run(train, kwargs={"epochs": 2, "wrap": True}, np=size, env=env)
        last = [metrics.last_values(run, rank, automatic=True) for rank in range(size)]
        totals.append(sum(each["training/samples"] for each in last))
        assert metrics.names(run) == ["loss", "val_loss"]
        assert (last[0].get("training/exchange_bytes", 0) > 0) is (size == 2)
        assert last[0]["training/steps"] == 2 * (13 if size == 1 else 7)
        rows = [_settings(run, rank)["validation_rows"] for rank in range(size)]
        assert sum(rows) == 20
        assert len({_settings(run, rank)["data"] for rank in range(size)}) == size
    assert totals == [200, 200]


def _settings(run: RunFolder, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in metrics.logged(run, "training", rank):
        found |= each["values"]
    return found


def test_rows_and_batches_of_data() -> None:
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
    import numpy as np

    from farandole.keras.recording import batch_size, rows_of

    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        batch_size = 5

    x = np.zeros((10, 2))
    assert rows_of({"x": x}) == 10
    assert rows_of({"x": {"a": x, "b": x}, "validation_split": 0.25}) == 7
    assert batch_size({"x": x}) == 32
    assert batch_size({"x": x, "batch_size": 4}) == 4
    assert rows_of({"x": Batches()}) is None
    assert batch_size({"x": Batches()}) == 5
    assert (rows_of({"x": iter([])}), batch_size({"x": iter([])})) == (None, None)
    assert rows_of({}) is None


def test_the_batch_of_a_dataset_of_tensorflow() -> None:
    pytest.importorskip("keras", reason="Keras 3 is not installed")
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

    from farandole.keras.recording import batch_size

    rows = tf.data.Dataset.range(10)
    assert batch_size({"x": rows.batch(4)}) == 4
    assert batch_size({"x": rows.batch(4, drop_remainder=True)}) == 4
    assert batch_size({"x": rows.batch(4).shard(2, 0).prefetch(1)}) == 4
