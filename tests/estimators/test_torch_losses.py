"""TorchEstimator: losses, metrics and weights of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from farandole.errors import DataError, SettingsError
from tests.estimators.tools import ROWS, Never, Pool, columns, weighted, written
from tests.estimators.torch_tools import BATCH, RATE, estimator, functions, net, weights
from tests.kits.messages import mentioning


def test_row_weights_equal_repeated_rows(tmp_path: Path) -> None:
    """A whole epoch is one batch, so its mean is the mean of all rows."""
    path, given = written(tmp_path), columns()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    x, y, w = (torch.tensor(given[name]).float() for name in ("x", "y", "w"))
    for _ in range(2):
        optimizer.zero_grad()
        (functions.mse_loss(model(x).reshape(-1), y, reduction="none") * w).mean().backward()
        optimizer.step()
    mine = net()
    for ranks, loss in ((1, "mse_loss"), (2, torch.nn.MSELoss())):
        trained = estimator(
            mine,
            optimizer=torch.optim.SGD(mine.parameters(), lr=RATE),
            loss=loss,
            backend=Pool(ranks),
            epochs=2,
            batch_size=ROWS,
            sample_weight_col="w",
            shuffle=False,
        ).fit_on_parquet(path)
        np.testing.assert_allclose(
            weights(trained.getModel()), weights(model), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("case", ["weights", "ignored", "sequence"])
def test_weighted_means_equal_those_of_one_process(case: str, tmp_path: Path) -> None:
    """With class weights, and with ignored labels, which may be all labels of a rank."""
    found, numbers = columns(), np.random.RandomState(2)
    sequence = np.where(numbers.rand(ROWS, 2) < 0.6, -100, numbers.randint(0, 3, (ROWS, 2)))
    path = tmp_path / "classes.parquet"
    pq.write_table(
        pa.table({"x": list(found["x"]), "k": found["k"], "s": list(sequence)}),
        path,
        row_group_size=16,
    )
    kinds = {
        "weights": {"weight": torch.tensor([1.0, 5.0, 20.0])},
        "ignored": {"ignore_index": 1},
        "sequence": {},
    }
    loss = torch.nn.CrossEntropyLoss(**kinds[case])

    def trained(ranks: int) -> Any:
        model = net(6 if case == "sequence" else 3)
        if case == "sequence":
            model.append(torch.nn.Unflatten(1, (3, 2)))
        return estimator(
            model,
            loss=loss,
            label_cols=["s" if case == "sequence" else "k"],
            backend=Pool(ranks),
            batch_size=BATCH // ranks,
            val_batch_size=ROWS,
        ).fit_on_parquet(str(path), str(path))

    one, two = trained(1), trained(2)
    np.testing.assert_allclose(
        weights(two.getModel()), weights(one.getModel()), rtol=1e-5, atol=1e-6
    )
    for own, other in zip(one.getHistory(), two.getHistory(), strict=True):
        assert own["train"]["loss"] == pytest.approx(other["train"]["loss"], rel=1e-5)
        assert own["validation"]["loss"] == pytest.approx(other["validation"]["loss"], rel=1e-5)


def test_metrics_of_one_name_have_numbers(tmp_path: Path) -> None:
    metrics = [
        lambda output, label: output.mean() * 0 + 1,
        lambda output, label: output.mean() * 0 + 2,
    ]
    found = estimator(net(), metrics=metrics, epochs=1, backend=Pool(1)).fit_on_parquet(
        written(tmp_path)
    )
    numbers = found.getHistory()[-1]["train"]
    assert (numbers["<lambda>"], numbers["<lambda>_1"], numbers["all_metrics"]) == (
        1.0,
        2.0,
        [[1.0, 2.0]],
    )


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (lambda output, label: output - label.reshape(-1, 5), "shape"),
        (lambda output, label: output, "Scalar"),
    ],
)
def test_a_metric_that_gives_no_number_is_named_with_its_label(
    tmp_path: Path, metric: Any, message: str
) -> None:
    training = estimator(net(), metrics=[metric], epochs=1, backend=Pool(1))
    with pytest.raises(
        Exception,
        match=mentioning("torch.float32", "[1]"),
    ) as error:
        training.fit_on_parquet(written(tmp_path))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {7: -0.5, 50: np.nan},
            ("'w'", "2", "61 rows", "-0.5"),
        ),
        ({50: np.nan}, ("61 rows", "nan")),
        ({50: np.inf}, ("61 rows", "inf")),
        (
            dict.fromkeys(range(ROWS), 0),
            ("'w'", "0", "61 rows"),
        ),
    ],
    ids=["negative", "nan", "infinite", "all 0"],
)
def test_invalid_row_weights_are_reported_before_training(
    values: dict[int, float], says: str | tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=mentioning(says)):
        estimator(sample_weight_col="w", backend=Never(1)).fit_on_parquet(
            weighted(tmp_path, values)
        )


def test_wrong_weights_that_a_function_makes_end_the_training(tmp_path: Path) -> None:
    """Weights in the files do not count then."""

    def shifted(rows: Any, by: float = 1.5) -> Any:
        return rows.assign(w=rows["w"].abs() - by)

    options: dict[str, Any] = {"sample_weight_col": "w", "epochs": 1, "shuffle": False}
    path = weighted(tmp_path, {0: 4.0, 1: -2.0})
    with pytest.raises(Exception, match=mentioning("'w'", "0", "8 rows")):
        estimator(transformation_fn=shifted, **options).fit_on_parquet(path)
    found = estimator(transformation_fn=lambda rows: shifted(rows, 0.0), **options).fit_on_parquet(
        path
    )
    assert found.getHistory()[0]["train"]["loss"] > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_of_weight_0_do_not_count(ranks: int, tmp_path: Path) -> None:
    """Batches of only such rows do not count, either."""
    none = dict.fromkeys(range(20), 0)
    trained = []
    for label in (1.0, 1000.0):
        path = weighted(tmp_path, none, y=dict.fromkeys(range(20), label))
        options: dict[str, Any] = {
            "sample_weight_col": "w",
            "shuffle": False,
            "backend": Pool(ranks),
            "batch_size": 8,
        }
        found = estimator(**options).fit_on_parquet(path, path)
        losses = [
            record[part]["loss"]
            for record in found.getHistory()
            for part in ("train", "validation")
        ]
        trained.append([*losses, *weights(found.getModel())])
    assert np.isfinite(trained).all()
    np.testing.assert_array_equal(*trained)


def test_constructors_of_losses_get_their_arguments(tmp_path: Path) -> None:
    """Horovod's get its local variables. A loss on the model's parameters gets the parameters of
    the rank.
    """

    def decaying(model: Any, label_columns: Any, scale: float = 0.5) -> Any:
        assert label_columns == ["y"]
        return lambda output, label: (
            functions.mse_loss(output, label) + scale * model[0].weight.square().sum()
        )

    def of_all(**local: Any) -> Any:
        assert {"model", "optimizer", "feature_columns", "loss_weights"} <= set(local)
        return torch.nn.MSELoss()

    path, found = written(tmp_path), []
    for constructors in (decaying, [of_all], torch.nn.MSELoss, [lambda: torch.nn.MSELoss()]):
        made = estimator(loss=None, loss_constructors=constructors, epochs=2)
        found.append(weights(made.fit_on_parquet(path).getModel()))
    for other in found[2:]:
        np.testing.assert_array_equal(found[1], other)
    assert np.abs(found[0][:12]).sum() < 0.5 * np.abs(found[1][:12]).sum(), "its weights decay"

    def bad(rate: Any) -> Any: ...

    with pytest.raises(SettingsError, match=mentioning("loss_constructors", "bad", "rate")):
        estimator(loss=None, loss_constructors=bad).payload()
