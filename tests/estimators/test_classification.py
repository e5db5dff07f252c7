"""Columns of classes, scores and probabilities, as Spark ML's evaluators take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

from farandole.errors import SettingsError
from farandole.estimators import TorchModel
from farandole.estimators.spark.classification import ClassColumns
from farandole.estimators.spec import OutputKind
from farandole.estimators.trainers.torch.losses import output_kind
from tests.estimators.tools import Never, Pool, frame, written
from tests.estimators.torch_tools import estimator, net
from tests.kits.messages import mentioning

NAMES = {"prediction_col": "p", "raw_prediction_col": "raw", "probability_col": "prob"}
LOGITS = np.array([[1.0, 3.0, 2.0], [900.0, -900.0, 0.0]])


def softmax(rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.exp(rows - rows.max(1, keepdims=True))
    return found / found.sum(1, keepdims=True)


@pytest.mark.parametrize(
    ("kind", "rows", "raw", "probabilities"),
    [
        (OutputKind("logits", False), LOGITS, LOGITS, softmax(LOGITS)),
        (OutputKind("log_probabilities", False), np.log([[0.2, 0.8]]), None, [[0.2, 0.8]]),
        (OutputKind("probabilities", False), [[0.7, 0.3]], [[0.7, 0.3]], [[0.7, 0.3]]),
        (OutputKind("probabilities", True), [0.25], [[0.75, 0.25]], [[0.75, 0.25]]),
        (OutputKind("logits", True), [np.log(3.0)], [[-np.log(3), np.log(3)]], [[0.25, 0.75]]),
        (OutputKind("log_probabilities", True), [np.log(0.75)], None, [[0.25, 0.75]]),
    ],
)
def test_scores_and_probabilities_of_each_kind(
    spark: Any, kind: OutputKind, rows: Any, raw: Any, probabilities: Any
) -> None:
    values = [(each.tolist(),) for each in np.asarray(rows)]
    shape = np.shape(rows)[1:]
    data = spark.createDataFrame(values, "o array<double>" if shape else "o double")
    made = ClassColumns("p", "raw", "prob", kind).made(shape)
    found = data.select(*(make(data.o).alias(name) for name, make in made.items())).collect()
    np.testing.assert_allclose([row.prob.toArray() for row in found], probabilities, rtol=1e-12)
    if raw is not None:
        np.testing.assert_allclose([row.raw.toArray() for row in found], raw, rtol=1e-12)
    assert [row.p for row in found] == np.argmax(probabilities, axis=1).tolist()


def test_cross_validation_needs_no_extra_stage(spark: Any, tmp_path: Path) -> None:
    rows = frame(spark)
    made = estimator(
        net(3),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        loss=torch.nn.CrossEntropyLoss(),
        label_cols=["k"],
        epochs=3,
        backend=Pool(1),
        **NAMES,
    )
    grid = ParamGridBuilder().addGrid(made.epochs, [0 + 1, 4]).build()
    evaluator = MulticlassClassificationEvaluator(
        labelCol="k", predictionCol="p", probabilityCol="prob", metricName="accuracy"
    )
    chosen = CrossValidator(
        estimator=made, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2
    ).fit(rows)
    assert max(chosen.avgMetrics) > 0.5
    chosen.bestModel.write().overwrite().save(str(tmp_path / "model"))
    found = TorchModel.load(str(tmp_path / "model")).transform(rows)
    for row in found.select("p", "raw", "prob", "k__output").collect():
        np.testing.assert_array_equal(row.raw.toArray(), row.k__output.toArray())
        np.testing.assert_allclose(
            row.prob.toArray(), softmax(row.raw.toArray()[None])[0], rtol=1e-6
        )
        assert row.p == np.argmax(row.raw.toArray())
    evaluator.setMetricName("logLoss")
    assert 0 < evaluator.evaluate(found) < 1.2


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"loss": "mse_loss", "probability_col": "p"}, ("probability_col", "output_kind")),
        ({"label_cols": ["y", "z"], "prediction_col": "p"}, ("prediction_col", "y, z")),
        ({"output_kind": "logit"}, ("'logit'", "logits")),
        ({"prediction_col": "p", "probability_col": "p"}, ("p, p",)),
        (
            {"loss": "binary_cross_entropy_with_logits", "label_cols": ["x"], **NAMES},
            ("3", "output_kind"),
        ),
    ],
)
def test_wrong_columns_are_an_error_before_training(
    params: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    outputs = 3 if params.get("label_cols") == ["x"] else 1
    made = estimator(net(outputs), backend=Never(1), **params)
    with pytest.raises(SettingsError, match=mentioning(*words)):
        made.fit_on_parquet(written(tmp_path))


def test_losses_show_the_outputs_of_a_classifier() -> None:
    functions = torch.nn.functional
    assert output_kind(functions.cross_entropy) == OutputKind("logits", False)
    assert output_kind(torch.nn.BCELoss()) == OutputKind("probabilities", True)
    assert output_kind(torch.nn.NLLLoss()) == OutputKind("log_probabilities", False)
    assert output_kind(functions.mse_loss) is None
    assert output_kind(lambda output, label: output) is None
