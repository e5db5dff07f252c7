"""``HorovodEstimator``: Databricks' estimator of 2019, whose model function now returns a Keras
model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from farandole.data import Store
from farandole.errors import DataError, SettingsError
from farandole.estimators.checkpoint import last_of
from farandole.estimators.keras import KerasEstimator, KerasModel
from farandole.estimators.spark.mllib import Estimator
from farandole.estimators.spark.params import Declared, Row, declare
from farandole.estimators.spark.persistence import Persistent

_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)  # *args and **kwargs
MOST_EPOCHS = 20  # most checkpoints and validations of a training run
RUN = "model"  # the run's folder below modelDir
TOO_OLD = (
    "modelFn has the arguments {arguments} of TensorFlow 1's estimators, which TensorFlow 2.16"
    " removed. Change it to modelFn(params), which returns a compiled Keras model with an input"
    " for each value of featureMapping. Replace an EstimatorSpec's loss and train_op by"
    " model.compile(loss=..., optimizer=...), eval_metric_ops by compile(metrics=...), and"
    " predictions by the model's outputs. mode, hooks, scaffolds and export_outputs have no"
    " replacement: layers know whether they train, and KerasEstimator takes callbacks"
)

PARAMS = (
    Row("modelFn", None, "function of params that returns a compiled Keras model"),
    Row("featureMapping", None, "dict from columns to the model's inputs"),
    Row("modelDir", None, "folder for checkpoints; training resumes from existing ones"),
    Row("labelCol", "label", "label column"),
    Row("batchSize", 128, "batch size of each rank"),
    Row("maxSteps", 1000, "batches of training, in total"),
    Row("isValidationCol", None, "column; rows with a value above 0 are used for validation"),
    Row("modelFnParams", {}, "params"),
    Row("saveCheckpointsSecs", 600, "no effect: a training keeps up to 20 checkpoints"),
    Row("saveCheckpointsSteps", None, "batches between checkpoints"),
    Row("numProc", None, "number of ranks; default: Spark's default parallelism"),
    Row("backend", None, "runs the ranks"),
)


@declare(PARAMS)
class HorovodEstimator(Estimator, Declared, Persistent):  # type: ignore[misc]
    """Train a model function's model: ``HorovodEstimator(modelFn=..., featureMapping={"image":
    "features"}, modelDir=..., labelCol="label", batchSize=64, maxSteps=5000,
    isValidationCol="isVal").fit(df)``.

    A thin layer over KerasEstimator.
    """

    def __init__(self, **values: Any) -> None:
        Estimator.__init__(self)
        Declared.__init__(self, **values)

    def _fit(self, dataset: Any) -> KerasModel:
        value = self.getOrDefault
        model = model_of(value("modelFn"), value("modelFnParams"))
        if not value("modelDir"):
            raise SettingsError("modelDir is required: the folder for checkpoints")
        store = Store.create(value("modelDir"))
        steps, epochs = rounds_left(store, value("maxSteps"), value("saveCheckpointsSteps"))
        ranks = (
            {"backend": value("backend")}
            if value("backend") is not None
            else {"num_proc": value("numProc")}
        )
        estimator = KerasEstimator(
            model=model,
            feature_cols=columns_of(model, value("featureMapping")),
            label_cols=[value("labelCol")],
            batch_size=value("batchSize"),
            epochs=epochs,
            train_steps_per_epoch=steps,
            validation=value("isValidationCol"),
            store=store,
            run_id=RUN,
            **ranks,
        )
        return estimator.fit(dataset)  # type: ignore[no-any-return]


def model_of(function: Callable[..., Any] | None, params: Mapping[str, Any]) -> Any:
    """Return the model of a model function. Raises SettingsError that lists all changes for a
    function of 2019.
    """
    if function is None:
        raise SettingsError(
            "modelFn is required: a function of params that returns a compiled Keras model"
        )
    parameters = list(inspect.signature(function).parameters.values())
    arguments = [each.name for each in parameters]
    needed = [each for each in parameters if each.default is each.empty and each.kind not in _REST]
    if len(needed) > 1 or "features" in arguments:
        raise SettingsError(TOO_OLD.format(arguments=", ".join(arguments)))
    takes = any(each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD) for each in parameters)
    model = function(dict(params)) if takes else function()
    if not getattr(model, "optimizer", None):
        raise SettingsError(
            f"modelFn returned {type(model).__name__}, but a Keras model on which compile() was"
            " called is needed"
        )
    return model


def columns_of(model: Any, mapping: Mapping[str, str] | None) -> list[str]:
    """Return the columns in the order of the model's inputs."""
    if not mapping:
        raise SettingsError(
            "featureMapping is required: a dict from columns to the names of the model's inputs"
        )
    names = [str(each.name).partition(":")[0] for each in getattr(model, "inputs", None) or []]
    columns = {name: column for column, name in mapping.items()}
    if len(names) == len(columns) == 1:
        return list(mapping)
    if sorted(columns) != sorted(names):
        raise DataError(
            f"featureMapping={dict(mapping)} does not lead to the model's inputs,"
            f" {', '.join(names)}"
        )
    return [columns[name] for name in names]


def rounds_left(store: Store, steps: int, each: int | None = None) -> tuple[int, int]:
    """Return the steps per epoch and the total number of epochs, so that a checkpoint's training
    reaches ``steps`` in total.

    Epochs keep their length, unless more than 20 would remain.
    """
    checkpoint = last_of(store, RUN)
    if checkpoint is None:
        return rounds(steps, each)
    length, left = (
        (checkpoint.fingerprint or {}).get("train_steps_per_epoch"),
        steps - checkpoint.steps,
    )
    if left <= 0:
        return length or rounds(steps, each)[0], checkpoint.epoch + 1
    if each is None and length and left % length == 0 and left // length <= MOST_EPOCHS:
        each = length
    length, epochs = rounds(left, each)
    return length, checkpoint.epoch + 1 + epochs


def rounds(steps: int, each: int | None = None) -> tuple[int, int]:
    """Return the steps per epoch and the number of epochs, for exactly ``steps`` in total and at
    most 20 epochs, unless ``each`` sets their length.
    """
    if steps < 1:
        raise SettingsError(f"maxSteps={steps} must be at least 1")
    if each is not None:
        if each < 1 or steps % each:
            raise SettingsError(
                f"saveCheckpointsSteps={each} must divide the {steps} remaining steps of training"
            )
        return each, steps // each
    epochs = next(count for count in range(min(MOST_EPOCHS, steps), 0, -1) if steps % count == 0)
    return steps // epochs, epochs


__all__ = ["HorovodEstimator", "columns_of", "model_of", "rounds", "rounds_left"]
