"""Trained Keras models with custom losses, metrics and optimizers, loaded again."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder

from farandole.errors import SettingsError
from farandole.estimators import KerasEstimator, KerasModel
from tests.estimators.keras_tools import estimator, net, weights
from tests.estimators.tools import Never, Pool, columns, written
from tests.keras.backends import QUICK
from tests.kits.messages import mentioning

# classes and functions like a notebook's, which no other process can import
SOURCE = '''
import functools, threading, keras

def squares(y_true, y_pred, factor=1.0):
    return factor * keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)

def distance(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))

thrice = lambda y_true, y_pred: squares(y_true, y_pred, 3.0)
apart = lambda y_true, y_pred: distance(y_true, y_pred)

def half(x):
    return x * 0.5

class Squares(keras.losses.Loss):
    """Without a get_config for its factor."""

    def __init__(self, factor=1.0, **options):
        super().__init__(**options)
        self.factor = factor

    def call(self, y_true, y_pred):
        return squares(y_true, y_pred, self.factor)

class Distance(keras.metrics.MeanMetricWrapper):
    def __init__(self, name="far", **options):
        super().__init__(distance, name=name)

    def get_config(self):
        return {"name": self.name}

class Count(keras.metrics.Mean):
    """Without a get_config for its base."""

    def __init__(self, base=1, **options):
        super().__init__(**options)
        self.base = base

class Slow(keras.optimizers.SGD):
    pass

class Decay(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.01

    def get_config(self):
        return {}

@keras.saving.register_keras_serializable("mine")
class Scaled(keras.layers.Layer):
    def call(self, x):
        return x * 2.0

class Gain(keras.layers.Layer):
    """Not registered, with a weight of its own."""

    def __init__(self, start=1.0, **options):
        super().__init__(**options)
        self.start = start

    def build(self, shape):
        first = keras.initializers.Constant(self.start)
        self.gain = self.add_weight(shape=(), initializer=first, name="gain")

    def call(self, x):
        return x * self.gain

    def get_config(self):
        return {**super().get_config(), "start": self.start}

class Start(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        return keras.ops.ones(shape, dtype)
'''


def _program() -> Any:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SOURCE, names)
    return SimpleNamespace(**names)


P = _program()


def _layers() -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((3,)),
            keras.layers.Dense(2, activation=P.half, kernel_initializer=P.Start()),
            P.Scaled(),
            P.Gain(3.0),
            keras.layers.Dense(1),
        ]
    )


def _compiled() -> Any:
    model = net()
    model.compile(P.Slow(P.Decay()), functools.partial(P.squares, factor=2.0), metrics=[P.distance])
    return model


CASES: dict[str, dict[str, Any]] = {
    "function": {"loss": P.squares},
    "lambda": {"loss": P.thrice},
    "partial": {"loss": functools.partial(P.squares, factor=3.0)},
    "class of a loss": {"loss": P.Squares(3.0)},
    "class": {"loss": P.Squares},
    "metrics": {"metrics": [P.distance, P.apart]},
    "metric": {"metrics": [P.Distance(), keras.metrics.MeanMetricWrapper(P.apart, "near")]},
    "optimizer": {"optimizer": P.Slow(P.Decay(), momentum=0.5)},
    "layers": {"model": _layers()},
    "compiled": {"model": _compiled(), "loss": None, "optimizer": None},
    "named": {"loss": "squares", "custom_objects": {"squares": P.squares}},
}
READ = """
import sys
import numpy as np
from farandole.estimators import KerasModel
from pyspark.ml import PipelineModel
from pyspark.ml.tuning import CrossValidatorModel
from pyspark.sql import SparkSession
SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
x, y = (np.load(sys.argv[1] + f"/{name}.npy") for name in "xy")
for name in sys.argv[2:]:
    kind = {"pipeline": PipelineModel, "chosen": CrossValidatorModel}.get(name, KerasModel)
    found = kind.load(f"{sys.argv[1]}/{name}")
    if kind is CrossValidatorModel:
        assert found.getEstimator().getStages()[0].getMetrics()[0].name == "far"
        found = found.bestModel
    model = (found.stages[0] if kind is not KerasModel else found).getModel()
    print("read", name, *np.ravel(model.evaluate(x, y, verbose=0)).tolist(), sep="|")
"""


@pytest.mark.slow
def test_saved_models_load_in_any_process(spark: Any, tmp_path: Path) -> None:
    path, known = written(tmp_path), columns()
    x, y = known["x"].astype("float32"), known["y"].astype("float32")[:, None]
    np.save(tmp_path / "x", x)
    np.save(tmp_path / "y", y)
    expected = {}
    for name, params in CASES.items():
        trained = estimator(epochs=1, **params).fit_on_parquet(path)
        trained.save(str(tmp_path / name))
        expected[name] = np.ravel(trained.getModel().evaluate(x, y, verbose=0))
        read = KerasModel.load(str(tmp_path / name)).getModel()
        np.testing.assert_array_equal(weights(read), weights(trained.getModel()))
        assert type(read.optimizer) is type(trained.getModel().optimizer)
    for name, model in _around(trained).items():
        model.write().save(str(tmp_path / name))
        expected[name] = expected[[*CASES][-1]]
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path), *expected],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    lines = [line.split("|")[1:] for line in done.stdout.splitlines() if line.startswith("read|")]
    assert [name for name, *_ in lines] == [*expected], done.stderr[-3000:]
    for name, *numbers in lines:
        np.testing.assert_allclose(np.array(numbers, float), expected[name], rtol=1e-5)


def _around(trained: Any) -> dict[str, Any]:
    """Return a pipeline's and a cross-validator's model of a trained model, as their ``fit``
    returns them.
    """
    made = estimator(loss=P.squares, metrics=[P.Distance()], optimizer=P.Slow(P.Decay()))
    search = CrossValidator(
        estimator=Pipeline(stages=[made]),
        estimatorParamMaps=ParamGridBuilder().addGrid(made.epochs, [1]).build(),
        evaluator=RegressionEvaluator(labelCol="y", predictionCol="y__output"),
    )
    pipeline = PipelineModel([trained])
    return {
        "pipeline": pipeline,
        "chosen": search._copyValues(CrossValidatorModel(pipeline, [0.5])),
    }


def test_an_estimator_is_read_with_its_losses(spark: Any, tmp_path: Path) -> None:
    made = estimator(
        metrics=[P.Distance()], loss=P.Squares(3.0), optimizer=P.Slow(0.25), backend=Pool(1, QUICK)
    )
    made.save(str(tmp_path / "estimator"))
    read = KerasEstimator.load(str(tmp_path / "estimator"))
    assert (read.getLoss().factor, read.getMetrics()[0].name) == (3.0, "far")
    assert float(np.asarray(read.getOptimizer().learning_rate)) == 0.25


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"metrics": [P.Count(7)]}, ("metrics", "Count", "base=7", "get_config")),
        (
            {"loss": functools.partial(P.squares, factor=P.threading.Lock())},
            ("loss", "lock"),
        ),
    ],
)
def test_models_that_cannot_be_saved_are_refused_by_fit(
    params: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=mentioning(*words)):
        estimator(backend=Never(1), **params).fit_on_parquet(written(tmp_path))


def test_a_model_predicts_although_compile_fails(spark: Any, tmp_path: Path) -> None:
    trained = estimator(epochs=1, loss=P.squares).fit_on_parquet(written(tmp_path))
    trained.save(str(tmp_path / "model"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("farandole.estimators.keras.open_arguments", _failing)
        read = KerasModel.load(str(tmp_path / "model")).getModel()
    np.testing.assert_array_equal(weights(read), weights(trained.getModel()))
    assert not read.compiled


def _failing(*_: Any) -> Any:
    raise ModuleNotFoundError("No module named 'losses_of_another_host'")


def test_the_scope_of_the_caller_is_kept(spark: Any, tmp_path: Path) -> None:
    with keras.saving.custom_object_scope({"squares": P.squares}):
        trained = estimator(epochs=1, loss="squares").fit_on_parquet(written(tmp_path))
    trained.save(str(tmp_path / "model"))
    assert KerasModel.load(str(tmp_path / "model")).getModel().loss.__name__ == "squares"
