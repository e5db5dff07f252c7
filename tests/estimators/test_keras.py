"""KerasEstimator trains like a plain loop of Keras on the same rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from farandole.data import Store, from_parquet
from farandole.errors import DataError, SettingsError
from farandole.estimators import KerasEstimator, KerasModel
from farandole.estimators.trainers.base import Training
from farandole.estimators.trainers.keras import trainer
from farandole.estimators.trainers.keras.callbacks import given_callbacks
from farandole.estimators.trainers.keras.state import Rates
from farandole.keras.callbacks import (
    BestModelCheckpoint,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from tests.estimators.keras_tools import BATCH, EPOCHS, RATE, estimator, net, plain, weights
from tests.estimators.tools import Never, Pool, columns, frame, written
from tests.keras.backends import QUICK
from tests.kits.messages import mentioning, mentions


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_on_parquet_is_that_of_a_plain_loop(ranks: int, tmp_path: Path) -> None:
    path = written(tmp_path)
    expected, losses = plain(from_parquet(path, columns=["x", "y"]))
    made = estimator(backend=Pool(ranks, QUICK), batch_size=BATCH // ranks)
    found = made.fit_on_parquet(path)
    np.testing.assert_allclose(weights(found.getModel()), weights(expected), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.getHistory()["loss"], losses, rtol=1e-4)
    assert made.setScaleLr(True).fit_on_parquet(
        path
    ).getModel().optimizer.learning_rate == np.float32(RATE)


def test_models_of_keras_2_train_and_resume(tmp_path: Path) -> None:
    tf_keras = pytest.importorskip("tf_keras", reason="tf_keras is not installed")
    path, store = written(tmp_path), Store.create(str(tmp_path / "store"))
    rate = 0.02  # each epoch is better than those before, so that the best model is the last
    expected, losses = plain(from_parquet(path, columns=["x", "y"]), tf_keras, rate)
    assert sorted(losses, reverse=True) == losses
    made = estimator(
        net(tf_keras),
        optimizer=tf_keras.optimizers.SGD(rate / 2, momentum=0.9),
        metrics=["mae"],
        store=store,
        run_id="two",
        backend=Pool(2),
        batch_size=BATCH // 2,
        epochs=1,
        scale_lr=True,
    )
    made.fit_on_parquet(path, path)
    found = made.setEpochs(EPOCHS).fit_on_parquet(path, path)
    np.testing.assert_allclose(weights(found.getModel()), weights(expected), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.getHistory()["loss"], losses, rtol=1e-4)
    assert len(found.getHistory()["val_mae"]) == EPOCHS
    x = columns()["x"]
    wanted = expected.predict_on_batch(x.astype("float32"))
    np.testing.assert_allclose(found.loader()()(x)[0], wanted, rtol=1e-3, atol=1e-5)
    read = KerasModel.unpack(found.pack({"model": found.getModel()}))["model"]
    assert np.array_equal(weights(read), weights(found.getModel()))
    assert read.optimizer.learning_rate == np.float32(rate / 2)


def test_ranks_on_spark_tasks_train_and_predict(spark: Any, scratch: Path, tmp_path: Path) -> None:
    rows = frame(spark).selectExpr("x", "cast(y as float) as y", "k", "w")
    keras.utils.set_random_seed(3)
    inputs = keras.layers.Input((3,), name="x")
    hidden = keras.layers.Dense(8, activation="relu")(inputs)
    model = keras.Model(
        inputs,
        [keras.layers.Dense(1, name="line")(hidden), keras.layers.Dense(3, name="kind")(hidden)],
    )
    model.compile(
        keras.optimizers.Adam(0.02),
        ["mse", keras.losses.SparseCategoricalCrossentropy(from_logits=True)],
        metrics=[[], ["accuracy"]],
    )
    made = estimator(
        model,
        optimizer=None,
        loss=None,
        label_cols=["y", "k"],
        num_proc=2,
        epochs=12,
        validation=0.2,
        batch_size=4,
        sample_weight_col="w",
        backend_env={"KERAS_BACKEND": QUICK},
    )
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
    np.testing.assert_allclose(
        np.stack([each.toArray() for each in given["k__output"]]), kind, rtol=1e-4, atol=1e-5
    )
    fitted.write().overwrite().save(str(tmp_path / "model"))
    read = KerasModel.load(str(tmp_path / "model"))
    assert np.array_equal(weights(read.getModel()), weights(fitted.getModel()))
    KerasEstimator(epochs=3).save(str(tmp_path / "bare"))  # its model comes later
    assert KerasEstimator.load(str(tmp_path / "bare")).getEpochs() == 3
    assert list(scratch.iterdir()) == []


def test_a_run_continues_and_callbacks_end_it(tmp_path: Path) -> None:
    path, store = written(tmp_path), Store.create(str(tmp_path / "store"))
    options: dict[str, Any] = {
        "store": store,
        "train_steps_per_epoch": 5,
        "batch_size": 4,
        "backend": Pool(2, QUICK),
    }
    whole = estimator(**options, run_id="whole", epochs=4).fit_on_parquet(path, path)
    estimator(**options, run_id="first", epochs=2).fit_on_parquet(path, path)
    rest = estimator(**options, run_id="first", epochs=4).fit_on_parquet(path, path)
    for name, numbers in whole.getHistory().items():
        np.testing.assert_allclose(rest.getHistory()[name], numbers, rtol=1e-5)
    np.testing.assert_allclose(
        weights(rest.getModel()), weights(whole.getModel()), rtol=1e-5, atol=1e-7
    )
    stopping = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=1e9)
    ended = estimator(callbacks=[stopping], epochs=9, backend=Pool(2, QUICK)).fit_on_parquet(path)
    assert len(ended.getHistory()["loss"]) == 2
    patient = estimator(monitor="loss", patience=2, min_delta=1e9, epochs=9).fit_on_parquet(path)
    assert len(patient.getHistory()["loss"]) == 3


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"loss": "msee"}, "loss='msee'"),
        ({"loss": None}, ("Loss", "model")),
        (
            {"optimizer": None},
            ("Optimizer", "model"),
        ),
        ({"feature_cols": ["y"]}, "y float64[]"),
        ({"label_cols": ["y", "k"]}, ("1", "2", "model", "outputs")),
        (
            {"loss": "sparse_categorical_crossentropy", "label_cols": ["x"]},
            ("loss", "outputs"),
        ),
    ],
    ids=["loss", "no loss", "optimizer", "features", "labels", "label"],
)
def test_bad_input_is_one_error_before_ranks_start(
    params: dict[str, Any], says: str | tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises((DataError, SettingsError), match=mentioning(says)):
        estimator(**{"backend": Never(1), **params}).fit_on_parquet(written(tmp_path))
    assert columns()["x"].shape[1] == 3


def test_weights_of_bfloat16_are_kept(tmp_path: Path) -> None:
    path, store = written(tmp_path), Store.create(str(tmp_path / "store"))
    layers = keras.layers
    model = keras.Sequential([layers.Input((3,)), layers.Dense(1, dtype="bfloat16")])
    options: dict[str, Any] = {"optimizer": keras.optimizers.SGD(0.01, momentum=0.9)}
    whole = estimator(model, epochs=2, **options).fit_on_parquet(path, path)
    estimator(model, store=store, run_id="half", epochs=1, **options).fit_on_parquet(path, path)
    found = estimator(model, store=store, run_id="half", epochs=2, **options).fit_on_parquet(
        path, path
    )
    assert found.getHistory() == whole.getHistory()
    assert found.getHistory()["val_loss"][1] < found.getHistory()["val_loss"][0]
    assert {str(each.dtype) for each in found.getModel().get_weights()} == {"bfloat16"}


def test_learning_rates_of_callbacks_are_scaled_also_nested_ones(tmp_path: Path) -> None:
    callbacks = [
        LearningRateWarmupCallback(9.0, warmup_epochs=1),
        LearningRateScheduleCallback(9.0, lambda epoch: 0.5, start_epoch=1),
    ]
    found = estimator(
        scale_lr=True, callbacks=callbacks, epochs=2, backend=Pool(2, QUICK)
    ).fit_on_parquet(written(tmp_path))
    np.testing.assert_allclose(found.getHistory()["lr"], [2 * RATE, RATE], rtol=1e-6)
    np.testing.assert_allclose(found.getModel().optimizer.learning_rate, RATE / 2, rtol=1e-6)
    inner = keras.optimizers.SGD(RATE)
    rates = Rates(keras.optimizers.LossScaleOptimizer(inner), 8)
    rates.scale()
    assert inner.learning_rate == np.float32(8 * RATE)
    rates.restore()
    assert inner.learning_rate == np.float32(RATE)


def test_training_continues_with_the_state_of_the_optimizer(tmp_path: Path) -> None:
    path, options = written(tmp_path), {"shuffle": False}
    whole = estimator(**options, epochs=2).fit_on_parquet(path)
    half = estimator(**options, epochs=1).fit_on_parquet(path)
    again = estimator(
        half.getModel(), **options, epochs=1, optimizer=None, loss=None
    ).fit_on_parquet(path)
    np.testing.assert_allclose(
        weights(again.getModel()), weights(whole.getModel()), rtol=1e-5, atol=1e-6
    )


def test_layers_draw_from_the_seed(tmp_path: Path) -> None:
    path = written(tmp_path)

    def drawn(seed: int) -> np.ndarray:
        model = keras.Sequential([*net().layers[:1], keras.layers.Dropout(0.5), *net().layers[1:]])
        options: dict[str, Any] = {
            "optimizer": keras.optimizers.SGD(0.01),
            "shuffle": False,
            "epochs": 1,
        }
        return weights(
            estimator(model, **options, random_seed=seed).fit_on_parquet(path).getModel()
        )

    first = drawn(1)
    assert np.array_equal(drawn(1), first)
    assert not np.allclose(drawn(2), first)


def test_few_rows_of_validation_are_all_on_every_rank(tmp_path: Path) -> None:
    data = from_parquet(written(tmp_path, 2), columns=["x", "y"])
    spec = estimator()._spec(data, data)
    for rank in range(3):
        assert [batch.rows for batch in Training(spec, rank, 3).held() or []] == [2]


def test_a_model_s_layers_and_losses_tell_what_a_run_comes_from(tmp_path: Path) -> None:
    data = from_parquet(written(tmp_path), columns=["x", "y"])

    def arguments(model: Any = None, **params: Any) -> dict[str, Any]:
        return estimator(model, **params)._spec(data, None).fingerprint

    layers = [
        keras.layers.Input((3,)),
        keras.layers.Dense(4, activation="relu"),
        keras.layers.Dense(1),
    ]
    assert arguments() == arguments()
    assert arguments(keras.Sequential(layers))["model"] != arguments()["model"]
    of_logits, other = (
        keras.losses.BinaryCrossentropy(from_logits=given) for given in (True, False)
    )
    assert arguments(loss=of_logits)["loss"] != arguments(loss=other)["loss"]
    assert arguments(monitor="loss") != arguments()


@keras.saving.register_keras_serializable("tests")
class Two(keras.Model):
    """A model without weights until it sees rows."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.first, self.second = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))


def test_models_that_are_not_built_come_back_trained(tmp_path: Path) -> None:
    path = written(tmp_path)
    for model in (keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)]), Two()):
        found = estimator(model, optimizer=keras.optimizers.Adam(0.05), epochs=6).fit_on_parquet(
            path
        )
        x, y = (columns()[name].astype("float32") for name in ("x", "y"))
        loss = float(np.mean((np.asarray(found.getModel()(x)).ravel() - y) ** 2))
        assert loss < found.getHistory()["loss"][-1] * 1.5 < found.getHistory()["loss"][0]


def test_gradients_of_several_batches_make_a_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path)
    options: dict[str, Any] = {"shuffle": False, "train_steps_per_epoch": 2, "epochs": 1}
    one = estimator(**options, batch_size=8).fit_on_parquet(path)
    whole = estimator(
        optimizer=keras.optimizers.SGD(RATE, momentum=0.9),
        shuffle=False,
        train_steps_per_epoch=1,
        epochs=1,
        batch_size=16,
    ).fit_on_parquet(path)
    both = estimator(**options, batch_size=8, backward_passes_per_step=2).fit_on_parquet(path)
    np.testing.assert_allclose(
        weights(both.getModel()), weights(whole.getModel()), rtol=1e-4, atol=1e-6
    )
    assert not np.allclose(weights(both.getModel()), weights(one.getModel()), rtol=1e-3)
    trainer._warn_of_remainder(3, 10)
    assert mentions(caplog.text, "1", "gradients", "backward_passes_per_step=3")
    caplog.clear()
    trainer._warn_of_remainder(3, 9)
    assert caplog.text == ""


def test_tensorboard_writes_to_the_logs_of_the_run_on_one_rank(tmp_path: Path) -> None:
    class Board(keras.callbacks.TensorBoard):  # TensorBoard itself is not installed
        def __init__(self) -> None:
            keras.callbacks.Callback.__init__(self)
            self.log_dir = str(tmp_path / "own")

        def set_model(self, model: Any) -> None:
            pass

        on_train_batch_begin = on_train_batch_end = on_epoch_begin = on_train_end = (
            on_test_begin
        ) = on_test_end = lambda self, *_, **__: None

        def on_train_begin(self, logs: Any = None) -> None:
            Path(self.log_dir).mkdir()  # of one rank: another one would find it there

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            (Path(self.log_dir) / f"epoch-{epoch}").write_text(str(sorted(logs)))

    path, store = written(tmp_path), Store.create(str(tmp_path / "store"))
    made = estimator(callbacks=[Board()], backend=Pool(2, QUICK), epochs=2)
    made.setStore(store).setRunId("first").fit_on_parquet(path)
    logs = store.get_logs_path("first")
    assert logs is not None
    assert [each.name for each in sorted(Path(logs).iterdir())] == ["epoch-0", "epoch-1"]
    assert not (tmp_path / "own").exists()
    made.clear(made.store)
    made.setBackend(Pool(1, QUICK)).fit_on_parquet(path)
    assert len(list((tmp_path / "own").iterdir())) == 2, "without a store where the user said"


def test_callbacks_of_keras_that_write_a_file_do_it_on_one_rank(tmp_path: Path) -> None:
    class Own(keras.callbacks.CSVLogger):  # may do more than write
        pass

    spec: Any = SimpleNamespace(
        store=None,
        run_id="first",
        payload={
            "callbacks": [
                keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
                Own(str(tmp_path / "own.csv")),
                keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras")),
                keras.callbacks.EarlyStopping("loss"),
            ]
        },
    )
    kinds = []
    for rank in (0, 1):
        with given_callbacks(keras, spec, rank) as found:
            kinds.append([type(each).__name__ for each in found])
    assert kinds == [
        ["CSVLogger", "Own", "ModelCheckpoint", "EarlyStopping"],
        ["Own", "EarlyStopping"],
    ]


def test_the_direction_of_a_checkpoint_callback_is_kept() -> None:
    for monitor, mode, expected in (
        ("val_accuracy", "max", "max"),
        ("val_auc", "auto", "max"),
        ("loss", "auto", "min"),
        ("score", "max", "max"),
    ):
        best = BestModelCheckpoint(monitor=monitor, mode=mode)
        assert estimator(checkpoint_callback=best)._watching(True).mode == expected
    with pytest.raises(SettingsError, match=mentioning("'score'")):
        estimator(checkpoint_callback=BestModelCheckpoint(monitor="score"))._watching(True)
    assert estimator(monitor="val_k_accuracy")._watching(True).mode == "max"
