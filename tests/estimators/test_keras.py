"""KerasEstimator: what it trains is what a plain loop of Keras trains on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from farandole.data import Store, from_parquet
from farandole.errors import DataError, SettingsError
from farandole.estimators import KerasEstimator, KerasModel
from farandole.estimators.trainers import keras as trainer
from farandole.keras.callbacks import BestModelCheckpoint
from tests.estimators.tools import Pool, columns, frame, written
from tests.keras.backends import QUICK

RATE, BATCH, EPOCHS = 0.1, 8, 3
pytestmark = pytest.mark.timeout(300)  # a session and its workers start slowly on a busy machine


def net(outputs: int = 1) -> Any:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(outputs)]
    return keras.Sequential(layers)


def estimator(model: Any = None, **params: Any) -> KerasEstimator:
    given: dict[str, Any] = {
        "model": net() if model is None else model, "optimizer": keras.optimizers.SGD(RATE, momentum=0.9),
        "loss": "mse", "feature_cols": ["x"], "label_cols": ["y"], "batch_size": BATCH, "epochs": EPOCHS,
        "random_seed": 5, "scale_lr": False, "verbose": 0, "backend": Pool(1, QUICK),
    }  # fmt: skip
    if "num_proc" in params:
        del given["backend"]
    return KerasEstimator(**{**given, **params})


def plain(data: Any, rate: float = RATE) -> Any:
    """A loop of the user's own, on one process: the model, and the loss of each epoch."""
    model, losses = net(), []
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse")
    reader = data.numpy(BATCH, seed=5, rank=0, size=1)
    for _ in range(EPOCHS):
        total = 0.0
        for rows in reader:
            model.reset_metrics()
            loss = model.train_on_batch(rows["x"].astype("float32"), rows["y"].astype("float32"))
            total += float(np.ravel(loss)[0]) * len(rows["y"])
        losses.append(total / data.rows)
    return model, losses


def weights(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(each) for each in model.get_weights()])


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_on_parquet_is_that_of_a_plain_loop(ranks: int, tmp_path: Path) -> None:
    path = written(tmp_path)
    expected, losses = plain(from_parquet(path, columns=["x", "y"]))
    made = estimator(backend=Pool(ranks, QUICK), batch_size=BATCH // ranks)
    found = made.fit_on_parquet(path)
    np.testing.assert_allclose(weights(found.getModel()), weights(expected), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.getHistory()["loss"], losses, rtol=1e-2 if ranks > 1 else 1e-4)
    assert made.setScaleLr(True).fit_on_parquet(path).getModel().optimizer.learning_rate == np.float32(RATE)


def test_ranks_on_spark_tasks_train_and_predict(spark: Any, scratch: Path, tmp_path: Path) -> None:
    rows = frame(spark).selectExpr("x", "cast(y as float) as y", "k", "w")
    keras.utils.set_random_seed(3)
    inputs = keras.layers.Input((3,), name="x")
    hidden = keras.layers.Dense(8, activation="relu")(inputs)
    model = keras.Model(
        inputs, [keras.layers.Dense(1, name="line")(hidden), keras.layers.Dense(3, name="kind")(hidden)]
    )
    model.compile(
        keras.optimizers.Adam(0.02), ["mse", keras.losses.SparseCategoricalCrossentropy(from_logits=True)],
        metrics=[[], ["accuracy"]],
    )  # fmt: skip
    made = estimator(
        model, optimizer=None, loss=None, label_cols=["y", "k"], num_proc=2, epochs=12, validation=0.2, batch_size=4,
        sample_weight_col="w", backend_env={"KERAS_BACKEND": QUICK},
    )  # fmt: skip
    fitted = made.fit(rows)
    history = fitted.getHistory()
    assert history["val_loss"][-1] < history["val_loss"][0]
    assert len(history["val_kind_accuracy"]) == 12
    found = fitted.transform(rows)
    assert dict(found.dtypes)["y__output"] == "float"
    assert dict(found.dtypes)["k__output"] == "vector"
    given = found.toPandas()
    line, kind = fitted.getModel().predict(np.stack(given["x"]).astype("float32"), verbose=0)
    np.testing.assert_allclose(given["y__output"], line.ravel(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.stack([each.toArray() for each in given["k__output"]]), kind, rtol=1e-4, atol=1e-5)
    fitted.write().overwrite().save(str(tmp_path / "model"))
    read = KerasModel.load(str(tmp_path / "model"))
    assert np.array_equal(weights(read.getModel()), weights(fitted.getModel()))
    assert list(scratch.iterdir()) == []


def test_a_run_goes_on_and_callbacks_end_it(tmp_path: Path) -> None:
    path, store = written(tmp_path), Store.create(str(tmp_path / "store"))
    options: dict[str, Any] = {"store": store, "train_steps_per_epoch": 5, "batch_size": 4, "backend": Pool(2, QUICK)}
    whole = estimator(**options, run_id="whole", epochs=4).fit_on_parquet(path, path)
    estimator(**options, run_id="first", epochs=2).fit_on_parquet(path, path)
    rest = estimator(**options, run_id="first", epochs=4).fit_on_parquet(path, path)
    for name, numbers in whole.getHistory().items():
        np.testing.assert_allclose(rest.getHistory()[name], numbers, rtol=1e-5)
    np.testing.assert_allclose(weights(rest.getModel()), weights(whole.getModel()), rtol=1e-5, atol=1e-7)
    stopping = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=1e9)
    ended = estimator(callbacks=[stopping], epochs=9, backend=Pool(2, QUICK)).fit_on_parquet(path)
    assert len(ended.getHistory()["loss"]) == 2
    patient = estimator(monitor="loss", patience=2, min_delta=1e9, epochs=9).fit_on_parquet(path)
    assert len(patient.getHistory()["loss"]) == 3


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"loss": "msee"}, "loss='msee': "),
        ({"loss": None}, "Loss parameter is required for the model to compile"),
        ({"optimizer": None}, "Optimizer must be provided either as a parameter or as part of a compiled model"),
        ({"feature_cols": ["y"]}, r"the model cannot take the features y float64\[\]"),
        ({"label_cols": ["y", "k"]}, "the model has 1 outputs for 2 label columns"),
        (
            {"loss": "sparse_categorical_crossentropy", "label_cols": ["x"]},
            r"the loss cannot take outputs of .*label x",
        ),
    ],
    ids=["loss", "no loss", "optimizer", "features", "labels", "label"],
)
def test_bad_input_is_one_error_before_ranks_start(params: dict[str, Any], says: str, tmp_path: Path) -> None:
    class Never(Pool):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("training has started")

    with pytest.raises((DataError, SettingsError), match=says):
        estimator(**{"backend": Never(1), **params}).fit_on_parquet(written(tmp_path))
    assert columns()["x"].shape[1] == 3


@keras.saving.register_keras_serializable("tests")
class Two(keras.Model):
    """Has no weights until it sees rows."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.first, self.second = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))


def test_models_that_are_not_built_come_back_trained(tmp_path: Path) -> None:
    path = written(tmp_path)
    for model in (keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)]), Two()):
        found = estimator(model, optimizer=keras.optimizers.Adam(0.05), epochs=6).fit_on_parquet(path)
        x, y = (columns()[name].astype("float32") for name in ("x", "y"))
        loss = float(np.mean((np.asarray(found.getModel()(x)).ravel() - y) ** 2))
        assert loss < found.getHistory()["loss"][-1] * 1.5 < found.getHistory()["loss"][0]


def test_gradients_of_several_batches_make_a_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path)
    options: dict[str, Any] = {"shuffle": False, "train_steps_per_epoch": 2, "epochs": 1}
    one = estimator(**options, batch_size=8).fit_on_parquet(path)
    whole = estimator(
        optimizer=keras.optimizers.SGD(RATE, momentum=0.9), shuffle=False, train_steps_per_epoch=1, epochs=1,
        batch_size=16,
    ).fit_on_parquet(path)  # fmt: skip
    both = estimator(**options, batch_size=8, backward_passes_per_step=2).fit_on_parquet(path)
    np.testing.assert_allclose(weights(both.getModel()), weights(whole.getModel()), rtol=1e-4, atol=1e-6)
    assert not np.allclose(weights(both.getModel()), weights(one.getModel()), rtol=1e-3)
    trainer._tell_left(3, 10)
    assert "the gradients of the last 1 make no step" in caplog.text
    caplog.clear()
    trainer._tell_left(3, 9)
    assert caplog.text == ""


def test_the_direction_of_a_checkpoint_callback_is_kept() -> None:
    for monitor, mode, expected in (
        ("val_accuracy", "max", "max"), ("val_auc", "auto", "max"), ("loss", "auto", "min"), ("score", "max", "max"),
    ):  # fmt: skip
        best = BestModelCheckpoint(monitor=monitor, mode=mode)
        assert estimator(checkpoint_callback=best)._watching(True).mode == expected
    with pytest.raises(SettingsError, match="does not know which values of 'score' are better"):
        estimator(checkpoint_callback=BestModelCheckpoint(monitor="score"))._watching(True)
    assert estimator(monitor="val_k_accuracy", mode="auto")._watching(True).mode == "max"
