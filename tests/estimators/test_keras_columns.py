"""KerasEstimator: columns as inputs, labels and categories of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from farandole.data import from_parquet
from farandole.errors import DataError
from farandole.estimators import KerasEstimator
from farandole.estimators.batches import Batches, first
from farandole.estimators.loaders.arrays import whole_numbers
from farandole.estimators.loaders.keras import inputs_of, pack
from farandole.estimators.trainers.keras import trainer
from farandole.estimators.trainers.keras.rows import Rows
from farandole.inference.models import Execution, open_model
from farandole.inference.models import pack as model_of
from tests.estimators.keras_tools import BATCH, RATE, estimator, weights
from tests.estimators.tools import Never, columns, written
from tests.kits.messages import mentioning


@keras.saving.register_keras_serializable("tests")
class Heads(keras.Model):
    """A model with named outputs, not in alphabetical order."""

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
    """Compare an epoch in this process, on the present backend of Keras, with ``fit`` on arrays."""
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
    """A custom loss, whose shapes Keras does not match."""

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
    with pytest.raises(DataError, match=mentioning("int64", "1.6243453636632417")):
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
    """Return the inputs that inference makes from the columns."""
    return np.ravel(open_model(packed, Execution())(arrays))


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
def test_categories_that_would_change_are_reported(number: Any, dtype: str) -> None:
    with pytest.raises(DataError, match=mentioning(dtype, str(number))):
        whole_numbers(np.array([1, number], number.dtype), dtype)
    assert whole_numbers(np.array([1.0, 2.0**53]), "int64").tolist() == [1, 2**53]
