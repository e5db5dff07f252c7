"""KerasEstimator: losses, metrics and weights of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from farandole.data import from_parquet
from farandole.errors import DataError, SettingsError
from farandole.estimators.batches import first
from tests.estimators.keras_tools import estimator, weights
from tests.estimators.tools import Never, Pool, columns, weighted, written
from tests.keras.backends import BACKENDS
from tests.kits.messages import mentioning


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_weight_0_do_not_count(backend: str, tmp_path: Path) -> None:
    """Batches of only such rows do not count, either."""
    trained = []
    for label in (1.0, 1000.0):
        path = weighted(tmp_path, dict.fromkeys(range(20), 0), y=dict.fromkeys(range(20), label))
        found = estimator(
            sample_weight_col="w", shuffle=False, backend=Pool(2, backend)
        ).fit_on_parquet(path, path)
        history = found.getHistory()
        trained.append([*history["loss"], *history["val_loss"], *weights(found.getModel())])
    assert np.isfinite(trained).all()
    np.testing.assert_array_equal(*trained)
    path = weighted(tmp_path, {50: -1.0})
    with pytest.raises(
        DataError,
        match=mentioning("'w'", "0", "61 rows", "-1"),
    ):
        estimator(sample_weight_col="w", backend=Never(1)).fit_on_parquet(path)


def test_losses_by_name_are_those_of_their_outputs(tmp_path: Path) -> None:
    inputs = keras.layers.Input((3,))
    heads = [keras.layers.Dense(3, name="kind")(inputs), keras.layers.Dense(1, name="line")(inputs)]
    data = from_parquet(written(tmp_path), columns=["x", "y", "k"])
    losses = {"line": "mse", "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    made = estimator(keras.Model(inputs, heads), label_cols=["k", "y"], loss=losses)
    spec = made._spec(data, None)
    assert made.check(spec, first(data, spec.columns)) == [(3,), (1,)]
    spec = made.setLoss({"line": "mse", "kin": "mse"})._spec(data, None)
    with pytest.raises(SettingsError, match=mentioning("outputs", "kind, line")):
        made.check(spec, first(data, spec.columns))


@pytest.mark.parametrize("backend", BACKENDS)
def test_losses_of_outputs_are_means_over_rows(tmp_path: Path, backend: str) -> None:
    inputs = keras.layers.Input((3,))
    heads = [keras.layers.Dense(1, name="y")(inputs), keras.layers.Dense(1, name="z")(inputs)]
    made = estimator(
        keras.Model(inputs, heads),
        optimizer=keras.optimizers.SGD(0.0),
        label_cols=["y", "z"],
        epochs=2,
        monitor="val_y_loss",
        backend=Pool(2, backend),
    )
    found = made.fit_on_parquet(written(tmp_path, 37), written(tmp_path, 21, "held.parquet"))
    for prefix, rows in (("", 37), ("val_", 21)):
        known = columns(rows)
        outputs = found.getModel().predict_on_batch(known["x"].astype("float32"))
        expected = [
            np.mean((np.ravel(output) - known[name]) ** 2)
            for name, output in zip("yz", outputs, strict=True)
        ]
        for name, mean in zip(
            ("y_loss", "z_loss", "loss"), [*expected, sum(expected)], strict=True
        ):
            np.testing.assert_allclose(found.getHistory()[prefix + name], [mean] * 2, rtol=1e-4)


def test_losses_of_the_user_s_own_see_labels_as_keras_gives_them(tmp_path: Path) -> None:
    data = from_parquet(written(tmp_path), columns=["x", "k"])

    def loss(y_true: Any, y_pred: Any) -> Any:
        for each in (y_true, y_pred):
            assert keras.ops.is_tensor(each)
            assert keras.backend.standardize_dtype(each.dtype) == "float32"
        return keras.ops.mean(keras.ops.square(y_true - y_pred))

    made = estimator(label_cols=["k"], loss=loss)
    spec = made._spec(data, None)
    assert made.check(spec, first(data, spec.columns)) == [(1,)]


def test_a_metric_may_give_a_number_for_each_class(tmp_path: Path) -> None:
    path = written(tmp_path)
    for function, count in (
        (keras.metrics.F1Score(threshold=0.5), 1),
        (keras.metrics.F1Score(name="f1_score"), 3),
    ):
        model = keras.Sequential(
            [keras.layers.Input((3,)), keras.layers.Dense(count, activation="sigmoid")]
        )
        options: dict[str, Any] = {
            "loss": "mse",
            "label_cols": ["y"],
            "metrics": [function],
            "epochs": 1,
        }
        if count > 1:
            options.update(label_cols=["x"])
        made = estimator(model, **options)
        history = made.fit_on_parquet(path, path).getHistory()
        assert (
            np.shape(history["f1_score"][0])
            == np.shape(history["val_f1_score"][0])
            == (() if count == 1 else (3,))
        )
