"""KerasEstimator: what it trains is what a plain loop of Keras trains on the same rows."""

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
from farandole.estimators.batches import Batches, first
from farandole.estimators.loaders.arrays import whole_numbers
from farandole.estimators.loaders.keras import inputs_of, pack
from farandole.estimators.trainers.base import Training
from farandole.estimators.trainers.keras import trainer
from farandole.estimators.trainers.keras.callbacks import given_callbacks
from farandole.estimators.trainers.keras.rows import Rows
from farandole.estimators.trainers.keras.state import Rates
from farandole.inference.models import Execution, open_model
from farandole.inference.models import pack as model_of
from farandole.keras.callbacks import (
    BestModelCheckpoint,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from tests.estimators.tools import Never, Pool, columns, frame, weighted, written
from tests.keras.backends import BACKENDS, QUICK
from tests.kits.messages import mentioning, mentions

RATE, BATCH, EPOCHS = 0.1, 8, 3


def net(package: Any = keras) -> Any:
    package.utils.set_random_seed(3)
    layers = package.layers
    return package.Sequential(
        [layers.Input((3,)), layers.Dense(4, activation="tanh"), layers.Dense(1)]
    )


def estimator(model: Any = None, **params: Any) -> KerasEstimator:
    given: dict[str, Any] = {
        "model": net() if model is None else model,
        "optimizer": keras.optimizers.SGD(RATE, momentum=0.9),
        "loss": "mse",
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "random_seed": 5,
        "scale_lr": False,
        "verbose": 0,
        "backend": Pool(1, QUICK),
    }
    if "num_proc" in params:
        del given["backend"]
    return KerasEstimator(**{**given, **params})


def plain(data: Any, package: Any = keras, rate: float = RATE) -> Any:
    """A loop of the user's own, on one process: the model, and the loss of each epoch."""
    model, losses = net(package), []
    model.compile(package.optimizers.SGD(rate, momentum=0.9), "mse")
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
    np.testing.assert_allclose(found.getHistory()["loss"], losses, rtol=1e-4)
    assert made.setScaleLr(True).fit_on_parquet(
        path
    ).getModel().optimizer.learning_rate == np.float32(RATE)


def test_models_of_keras_2_are_trained_and_a_run_goes_on(tmp_path: Path) -> None:
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


def test_a_run_goes_on_and_callbacks_end_it(tmp_path: Path) -> None:
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


@keras.saving.register_keras_serializable("tests")
class Heads(keras.Model):
    """Its outputs have names, in another order than that of the alphabet."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.line, self.kind = keras.layers.Dense(1), keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return {"y": self.line(x), "k": self.kind(x)}


def test_outputs_with_names_learn_the_labels_of_these_names(tmp_path: Path) -> None:
    path = written(tmp_path)
    of_kinds = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options: dict[str, Any] = {
        "model": Heads(),
        "optimizer": keras.optimizers.Adam(0.1),
        "loss": ["mse", of_kinds],
        "epochs": 6,
        "metrics": [[], ["accuracy"]],
    }
    found = estimator(**options, label_cols=["y", "k"], sample_weight_col="w").fit_on_parquet(path)
    assert found.getHistory()["k_accuracy"][-1] > 0.8
    known = columns()
    line, kind = found.loader()()(known["x"].astype("float32"))
    assert np.mean((line.ravel() - known["y"]) ** 2) < 0.5
    assert np.mean(kind.argmax(axis=1) == known["k"]) > 0.8
    with pytest.raises(DataError, match=mentioning("outputs", "y, k", "y, z")):
        estimator(**options, label_cols=["y", "z"], backend=Never(1)).fit_on_parquet(path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_weight_0_do_not_count(backend: str, tmp_path: Path) -> None:
    """Batches of nothing else neither."""
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


def test_unnamed_inputs_and_outputs_work_on_every_backend(
    tmp_path: Path,
) -> None:
    path = written(tmp_path)
    given = [keras.layers.Input((3,)), keras.layers.Input((1,))]
    hidden = keras.layers.Concatenate()(given)
    model = keras.Model(given, [keras.layers.Dense(1)(hidden), keras.layers.Dense(1)(hidden)])
    data = from_parquet(path, columns=["x", "z", "y", "w"])
    made = estimator(model, feature_cols=["x", "z"], label_cols=["y", "w"], shuffle=False, epochs=1)
    known = columns()
    z, y, w = (known[name][:, None] for name in ("z", "y", "w"))
    given = [known["x"], z], [y, w]
    assert_trained_as_by_keras(made, data, given, loss="mse")


def assert_trained_as_by_keras(
    made: KerasEstimator, data: Any, given: Any, **compiled: Any
) -> None:
    """An epoch in this process, on the backend that Keras has here, against that of ``fit`` on
    arrays.
    """
    model, spec = made.getModel(), made._spec(data, None)
    model.compile(keras.optimizers.SGD(RATE), **compiled)
    begun = model.get_weights()
    plain = model.fit(*given, batch_size=BATCH, shuffle=False, verbose=0).history
    expected = weights(model)
    model.set_weights(begun)
    made.check(spec, first(data, spec.columns))
    held = Batches(data, spec.columns, spec.validation_reading, 0, 1)
    rows = Rows(Batches(data, spec.columns, spec.train_reading, 0, 1), model, spec, share=True)
    trainer._fit(model, rows, spec, 0, [], held)
    np.testing.assert_allclose(weights(model), expected, rtol=1e-4, atol=1e-5)
    found = model.history.history
    for name, values in plain.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-3)


class Squares(keras.losses.Loss):
    """A loss of the user's own, whose shapes Keras does not match."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.square(y_true - y_pred)


def distance(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


def test_labels_have_the_shape_of_outputs_in_losses_and_metrics(
    tmp_path: Path,
) -> None:
    data = from_parquet(written(tmp_path), columns=["x", "y"])
    made = estimator(loss=Squares(), shuffle=False, epochs=1)
    known = columns()
    given = known["x"], known["y"][:, None]
    assert_trained_as_by_keras(made, data, given, loss=Squares(), metrics=[distance])


def test_inputs_of_a_dict_have_names_and_categories_are_integers(
    tmp_path: Path,
) -> None:
    path = written(tmp_path)
    given = {name: keras.layers.Input((1,), name=name) for name in ("z", "w")}
    model = keras.Model(given, keras.layers.Dense(1)(given["z"] - 2 * given["w"]))
    with pytest.raises(DataError, match=mentioning("w, z", "z, y")):
        estimator(model, feature_cols=["z", "y"], backend=Never(1)).fit_on_parquet(path)
    with pytest.raises(DataError, match=mentioning("int64", "1.62")):
        estimator(categorical_cols=["x"], backend=Never(1)).fit_on_parquet(path)


def test_inputs_of_a_dict_go_by_its_keys() -> None:
    one, two = np.array([1.0, 1.0]), np.array([10.0, 10.0])
    for names in ((None, None), ("p", "q"), ("b", "a")):
        first, second = (keras.layers.Input((1,), name=name) for name in names)
        model = keras.Model({"b": first, "a": second}, keras.layers.Subtract()([first, second]))
        given = inputs_of(pack(model, {}).open(), ["a", "b"], [one, two], ())
        assert {name: array.tolist() for name, array in given.items()} == {
            "a": [[1], [1]],
            "b": [[10], [10]],
        }
    with pytest.raises(DataError, match=mentioning("a, b", "p, q")):
        inputs_of(model, ["p", "q"], [one, two], ())


def test_a_column_never_takes_the_place_of_another_input() -> None:
    one, two = np.array([[1.0]]), np.array([[10.0]])
    given = [keras.layers.Input((1,), name=name) for name in ("a", "b")]
    model = keras.Model(given, keras.layers.Subtract()(given))
    assert inputs_of(model, ["b", "a"], [one, two], ()) == [[[10]], [[1]]]
    assert inputs_of(model, ["a", "c"], [one, two], ()) == [[[1]], [[10]]]
    for names in (["b", "c"], ["c", "a"]):
        with pytest.raises(
            DataError,
            match=mentioning("inputs", "a, b"),
        ):
            inputs_of(model, names, [one, two], ())


class ByName(keras.Model):  # type: ignore[misc]
    """A model of the program, whose inputs are a dict."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.line = keras.layers.Dense(1)

    def call(self, given: Any) -> Any:
        columns = [given[name] for name in ("w", "z")]
        return self.line(
            keras.ops.stack([keras.ops.reshape(each, (-1,)) for each in columns], axis=1)
        )


@pytest.mark.parametrize("called", [False, True])
def test_a_subclass_that_takes_a_dict_gets_columns_by_name(called: bool, tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    model, known = ByName(), columns()
    if called:
        model({"z": known["z"], "w": known["w"]})
    found = estimator(model, feature_cols=["z", "w"], epochs=1).fit_on_parquet(written(tmp_path))
    predicted = found.loader()()(known["z"], known["w"])[0]
    kernel, bias = found.getModel().get_weights()
    np.testing.assert_allclose(
        predicted, np.stack([known["w"], known["z"]], 1) @ kernel + bias, rtol=1e-5, atol=1e-6
    )
    assert called_with(model_of(found.getModel()), z=known["z"], w=known["w"]) == pytest.approx(
        predicted.ravel()
    )


def called_with(packed: Any, **arrays: Any) -> Any:
    """What inference makes of the columns."""
    return np.ravel(open_model(packed, Execution())(arrays))


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


def test_axes_in_another_order_are_not_reshaped_without_a_word(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "images.parquet"
    pq.write_table(pa.table({"x": np.zeros((8, 6)).tolist(), "y": np.zeros((8, 6)).tolist()}), path)
    inputs = keras.layers.Input((2, 3))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    flat = estimator(model, backend=Never(1))
    data = from_parquet(str(path), columns=["x", "y"])
    spec = flat._spec(data, None)
    assert flat.check(spec, first(data, spec.columns)) == [(2, 3)]
    for shapes, says in (
        ({"x": (3, 2)}, "model"),
        ({"y": (3, 2)}, "loss"),
    ):
        with pytest.raises(DataError, match=mentioning(says, "[3, 2]")):
            estimator(model, data_options={"shapes": shapes}, backend=Never(1)).fit_on_parquet(
                str(path)
            )


def test_losses_of_the_user_s_own_see_labels_as_keras_gives_them(tmp_path: Path) -> None:
    data = from_parquet(written(tmp_path), columns=["x", "k"])
    seen = []

    def loss(y_true: Any, y_pred: Any) -> Any:
        seen.append(
            [
                keras.ops.is_tensor(each) and keras.backend.standardize_dtype(each.dtype)
                for each in (y_true, y_pred)
            ]
        )
        return keras.ops.mean(keras.ops.square(y_true - y_pred))

    made = estimator(label_cols=["k"], loss=loss)
    spec = made._spec(data, None)
    made.check(spec, first(data, spec.columns))
    assert seen == [["float32", "float32"]]


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (np.int32(-1), "uint32"),
        (np.uint64(2**63 + 5), "int64"),
        (np.float64(1e30), "int64"),
        (np.int64(300), "uint8"),
    ],
    ids=["sign", "large", "larger", "small"],
)
def test_categories_that_would_become_others_are_told(number: Any, dtype: str) -> None:
    with pytest.raises(DataError, match=mentioning("numbers")):
        whole_numbers(np.array([1, number], number.dtype), dtype)
    assert whole_numbers(np.array([1.0, 2.0**53]), "int64").tolist() == [1, 2**53]


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


def test_training_goes_on_with_the_state_of_the_optimizer(tmp_path: Path) -> None:
    path, options = written(tmp_path), {"shuffle": False}
    whole = estimator(**options, epochs=2).fit_on_parquet(path)
    half = estimator(**options, epochs=1).fit_on_parquet(path)
    again = estimator(
        half.getModel(), **options, epochs=1, optimizer=None, loss=None
    ).fit_on_parquet(path)
    np.testing.assert_allclose(
        weights(again.getModel()), weights(whole.getModel()), rtol=1e-5, atol=1e-6
    )


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


def test_what_layers_draw_comes_from_the_seed(tmp_path: Path) -> None:
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

    def told(model: Any = None, **params: Any) -> dict[str, Any]:
        return estimator(model, **params)._spec(data, None).fingerprint

    layers = [
        keras.layers.Input((3,)),
        keras.layers.Dense(4, activation="relu"),
        keras.layers.Dense(1),
    ]
    assert told() == told()
    assert told(keras.Sequential(layers))["model"] != told()["model"]
    of_logits, other = (
        keras.losses.BinaryCrossentropy(from_logits=given) for given in (True, False)
    )
    assert told(loss=of_logits)["loss"] != told(loss=other)["loss"]
    assert told(monitor="loss") != told()


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
    trainer._tell_left(3, 10)
    assert mentions(caplog.text, "1", "gradients", "step")
    caplog.clear()
    trainer._tell_left(3, 9)
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
