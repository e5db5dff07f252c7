"""HorovodEstimator: a pipeline of 2019 with a model function of today."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import keras
import pytest

from farandole.data import Store
from farandole.errors import DataError, SettingsError
from farandole.estimators.checkpoint import Checkpoint, write
from farandole.estimators.model_function import RUN, HorovodEstimator, model_of, rounds, rounds_left
from tests.estimators.tools import Pool, frame
from tests.keras.backends import QUICK
from tests.kits.messages import mentioning


def model_fn(params: dict[str, Any]) -> Any:
    first, second = keras.layers.Input((3,), name="first"), keras.layers.Input((1,), name="second")
    both = keras.layers.Concatenate()([first, second])
    model = keras.Model([first, second], keras.layers.Dense(params["classes"])(both))
    model.compile(
        keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def test_a_model_function_trains_some_steps_and_continues(spark: Any, tmp_path: Path) -> None:
    rows = frame(spark).selectExpr("x", "z", "k as label", "int(z > 1) as isVal")
    made = HorovodEstimator(
        modelFn=model_fn,
        featureMapping={"z": "second", "x": "first"},
        modelDir=str(tmp_path),
        batchSize=8,
        maxSteps=15,
        isValidationCol="isVal",
        modelFnParams={"classes": 3},
        saveCheckpointsSteps=5,
        backend=Pool(1, QUICK),
    )
    fitted = made.fit(rows)
    assert len(fitted.getHistory()["val_loss"]) == 3
    assert len(made.setMaxSteps(20).fit(rows).getHistory()["val_loss"]) == 4
    assert dict(fitted.transform(rows).dtypes)["label__output"] == "vector"


def test_a_model_function_of_2019_gets_all_changes_listed() -> None:
    def old(features: Any, labels: Any, mode: Any, params: Any) -> Any: ...

    options: dict[str, Any] = {"featureMapping": {"x": "first"}, "modelDir": "here"}
    for function, changed, says in (
        (
            old,
            {},
            ("modelFn", "features, labels, mode, params"),
        ),
        (lambda: 3, {}, ("modelFn", "int", "Keras")),
        (None, {}, "modelFn"),
        (model_fn, {"modelDir": None, "modelFnParams": {"classes": 2}}, "modelDir"),
        (
            model_fn,
            {"modelFnParams": {"classes": 2}},
            ("inputs", "first, second"),
        ),
        (
            model_fn,
            {"maxSteps": 0, "modelFnParams": {"classes": 2}},
            ("maxSteps=0", "1"),
        ),
    ):
        with pytest.raises((SettingsError, DataError), match=mentioning(says)):
            HorovodEstimator(modelFn=function, **{**options, **changed}).fit(None)
    with pytest.raises(SettingsError, match=mentioning("7", "steps", "training")):
        rounds(7, 2)
    assert (rounds(1000), rounds(7), rounds(23)) == ((50, 20), (1, 7), (23, 1))


def test_arguments_with_defaults_are_left_to_the_model_function() -> None:
    def wide(params: dict[str, Any], width: int = 8, *rest: Any, **more: Any) -> Any:
        return given.append((params, width, rest, more)) or model_fn({"classes": width})

    given: list[Any] = []
    for function in (
        wide,
        partial(wide, width=3),
        lambda *given: wide(*given),
        lambda **none: wide({"a": 1}, **none),
    ):
        assert model_of(function, {"a": 1}).optimizer is not None
    assert given == [({"a": 1}, width, (), {}) for width in (8, 3, 8, 8)]


def test_more_steps_than_a_checkpoint_has_are_trained(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    assert rounds_left(store, 1000) == (50, 20)
    write(store, RUN, Checkpoint(19, [], {}, b"", None, None, steps=1000))
    assert rounds_left(store, 2000) == (50, 40)
    assert rounds_left(store, 1007) == (1, 27)
    assert rounds_left(store, 1500, 250) == (250, 22)
    assert rounds_left(store, 500)[1] == 20  # nothing is left
    # ended early
    write(store, RUN, Checkpoint(20, [], {}, b"", None, None, 350, {"train_steps_per_epoch": 50}))
    assert rounds_left(store, 1000) == (50, 34)
    assert [rounds_left(store, *given) for given in ((1001,), (1000, 26), (8350,))] == [
        (93, 28),
        (26, 46),
        (400, 41),
    ]
    # that training, with any number of steps now
    assert rounds_left(store, 350) == rounds_left(store, 14, 7) == (50, 21)
