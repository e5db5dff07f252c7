"""KerasEstimator with models of Keras 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.data import Store
from farandole.errors import DataError
from farandole.estimators import KerasEstimator
from farandole.estimators.loaders.keras import inputs_of, pack
from farandole.estimators.trainers.keras.state import Rates, load, saved
from tests.estimators.tools import Pool, columns, written
from tests.kits.messages import mentioning

tf_keras = pytest.importorskip("tf_keras", reason="tf_keras is not installed")

RATE, HELD = 0.02, 3


def test_an_old_optimizer_continues_validation_rows_count_once(tmp_path: Path) -> None:
    from farandole.keras.tf_keras.callbacks import LearningRateScheduleCallback

    path, held = written(tmp_path), written(tmp_path, HELD, "held.parquet")

    def estimator(run: str, epochs: int) -> Any:
        layers = [tf_keras.layers.Input((3,)), tf_keras.layers.Dense(1, kernel_initializer="ones")]
        return KerasEstimator(
            model=tf_keras.Sequential(layers),
            optimizer=tf_keras.optimizers.legacy.SGD(RATE, momentum=0.9),
            loss="mse",
            feature_cols=["x"],
            label_cols=["y"],
            batch_size=4,
            epochs=epochs,
            verbose=0,
            run_id=run,
            callbacks=[LearningRateScheduleCallback(9.0, lambda epoch: 1 / (epoch + 1))],
            store=Store.create(str(tmp_path / "store")),
            backend=Pool(2),
        )

    whole = estimator("whole", 3).fit_on_parquet(path, held)
    estimator("parts", 2).fit_on_parquet(path, held)
    parts = estimator("parts", 3).fit_on_parquet(path, held)
    for name, numbers in whole.getHistory().items():
        np.testing.assert_allclose(parts.getHistory()[name], numbers, rtol=1e-5)
    np.testing.assert_allclose(whole.getHistory()["lr"], [2 * RATE, RATE, 2 * RATE / 3], rtol=1e-6)
    model, known = whole.getModel(), columns(HELD)
    losses = (np.ravel(model(known["x"].astype("float32"))) - known["y"]) ** 2
    best = int(np.argmin(whole.getHistory()["val_loss"]))
    np.testing.assert_allclose(whole.getHistory()["val_loss"][best], losses.mean(), rtol=1e-4)
    np.testing.assert_allclose(model.optimizer.learning_rate, RATE / (best + 1), rtol=1e-6)


def test_a_rate_that_a_callback_lowered_is_kept() -> None:
    def model() -> Any:
        made = tf_keras.Sequential([tf_keras.layers.Input((3,)), tf_keras.layers.Dense(1)])
        made.compile(tf_keras.optimizers.SGD(RATE), "mse")
        made.optimizer.build(made.trainable_variables)
        return made

    trained, other = model(), model()
    rates = Rates(trained.optimizer, 2)
    rates.scale()
    trained.optimizer.learning_rate = RATE / 5  # of two ranks, as ReduceLROnPlateau sets it
    load(other, saved(trained, rates))
    np.testing.assert_allclose(np.asarray(other.optimizer.learning_rate), RATE / 10, rtol=1e-6)


def test_inputs_of_a_dict_go_by_its_keys() -> None:
    first, second = (tf_keras.layers.Input((1,), name=name) for name in ("p", "q"))
    model = tf_keras.Model({"b": first, "a": second}, tf_keras.layers.Subtract()([first, second]))
    read, one, two = pack(model, {}).open(), np.array([1.0, 1.0]), np.array([10.0, 10.0])
    assert np.ravel(read(inputs_of(read, ["a", "b"], [one, two], ()))).tolist() == [9, 9]
    assert np.ravel(
        read.predict_on_batch(inputs_of(read, ["b", "a"], [one, two], ()))
    ).tolist() == [-9, -9]
    with pytest.raises(DataError, match=mentioning("a, b", "q, p")):
        inputs_of(read, ["q", "p"], [one, two], ())
