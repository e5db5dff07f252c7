"""TorchEstimator: columns as inputs, labels and categories of a model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from farandole.data import from_parquet
from farandole.errors import DataError, SettingsError
from farandole.estimators import TorchEstimator, TorchModel
from farandole.estimators.batches import first
from farandole.estimators.loaders.torch import Loader, inputs_of, naming, output_list
from farandole.estimators.spark.estimator import reading
from farandole.estimators.trainers.torch.losses import Objective, _matched
from farandole.estimators.trainers.torch.tensors import tensors
from tests.estimators.tools import ROWS, Never, Pool, columns, written
from tests.estimators.torch_tools import estimator, functions, losses, net, weights
from tests.kits.messages import mentioning


class Named(torch.nn.Module):
    """Two outputs, in a dictionary by label or in a list."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.inner, self.named = net(2), named

    def forward(self, x: torch.Tensor) -> Any:
        y, z = self.inner(x).unbind(1)
        return {"z": z, "y": y} if self.named else [y, z]


def test_outputs_with_the_names_of_labels_learn_these(tmp_path: Path) -> None:
    data = from_parquet(written(tmp_path), columns=["x", "y", "z"])
    made = estimator(Named(True), label_cols=["y", "z"])
    spec, x = made._spec(data, None), columns()["x"][:5]
    assert made.check(spec, first(data, spec.columns)) == [(), ()]
    expected = torch.stack(Named(False)(torch.tensor(x).float()))
    found, _ = Objective(spec).matched(
        made.getModel()(torch.tensor(x).float()), [torch.zeros(5)] * 2
    )
    torch.testing.assert_close(torch.stack(found), expected)
    metadata = {"feature_columns": ["x"], "label_columns": ["y", "z"]}
    predicted = TorchModel(model=made.getModel(), **metadata).loader()()(x)
    np.testing.assert_allclose(predicted, expected.detach().numpy(), rtol=1e-6)


def test_outputs_named_like_another_label_are_reported() -> None:
    one, two = torch.zeros(1), torch.ones(1)
    for outputs in ({"z": one, "other": two}, {"other": one, "y": two}):
        with pytest.raises(
            DataError,
            match=mentioning("outputs", "y, z"),
        ):
            output_list(outputs, ["y", "z"])
    for outputs in ({"p": one, "q": two}, {"y": one, "q": two}):
        assert output_list(outputs, ["y", "z"]) == [one, two]


def test_classes_keep_their_digits_in_half_precision(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"x": np.eye(3).tolist(), "k": [256.0, 257.0, 258.0]}),
        tmp_path / "classes.parquet",
    )
    data = from_parquet(str(tmp_path / "classes.parquet"))
    for kind in (torch.bfloat16, torch.float32, torch.float64):
        made = estimator(net(300).to(kind), label_cols=["k"], loss="cross_entropy")
        spec = made._spec(data, None)
        inputs, labels, _ = tensors(first(data, spec.columns, 3), spec, made.getModel(), "cpu")
        _, found = Objective(spec).matched(made.getModel()(*inputs), labels)
        assert found[0].tolist() == [256, 257, 258], kind


def test_numbers_outside_classes_or_categories_are_reported(tmp_path: Path) -> None:
    path = written(tmp_path)
    of_classes = {"loss": "cross_entropy", "label_cols": ["z"]}
    with pytest.raises(DataError, match=mentioning("0", "label", "loss")):
        estimator(net(4), **of_classes, backend=Never(1)).fit_on_parquet(path)
    with pytest.raises(DataError, match=mentioning("int64", "1.6243453636632417")):
        estimator(categorical_cols=["x"], backend=Never(1)).fit_on_parquet(path)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (
            {"categorical_cols": ["kk"]},
            ("categorical_cols", "'kk'"),
        ),
        (
            {"continuous_cols": ["other"]},
            ("continuous_cols", "'other'"),
        ),
        (
            {"input_shapes": [[-1, 1]]},
            ("input_shapes", "[-1, 1]", "feature_cols=['k', 'x']"),
        ),
        (
            {"label_shapes": [[1], None]},
            ("label_shapes", "label_cols=['y']"),
        ),
    ],
)
def test_parameters_of_columns_that_name_none(
    tmp_path: Path, params: dict[str, Any], text: str | tuple[str, ...]
) -> None:
    with pytest.raises(SettingsError, match=mentioning(text)):
        estimator(feature_cols=["k", "x"], **params, backend=Never(1)).fit_on_parquet(
            written(tmp_path)
        )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"removed": ["w"]},
            (("transformation_removed_fields", "'w'")),
        ),
        (
            {"edit": [("xs", np.float32, (3,), False)]},
            ("transformation_edit_fields", "'xs'", "'x'"),
        ),
    ],
)
def test_fields_of_a_transformation_that_name_no_column(
    tmp_path: Path, fields: dict[str, Any], text: str | tuple[str, ...]
) -> None:
    given = {f"transformation_{name}_fields": value for name, value in fields.items()}
    with pytest.raises(DataError, match=mentioning(text)):
        estimator(transformation_fn=lambda rows: rows, **given, backend=Never(1)).fit_on_parquet(
            written(tmp_path)
        )


def test_labels_whose_axes_have_another_order_are_not_reshaped() -> None:
    mse = torch.nn.functional.mse_loss
    output, flat = torch.zeros(4, 2, 3), torch.arange(24.0).reshape(4, 6)
    assert _matched(output, flat, mse).shape == (4, 2, 3)
    assert _matched(output, flat.reshape(4, 2, 3, 1).long(), mse).dtype == torch.float32
    turned = flat.reshape(4, 3, 2)  # of channels first, say, for an output of channels last
    assert _matched(output, turned, mse) is turned  # which the loss tells


class TwoInputs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.line, self.classes = (
            torch.nn.Embedding(3, 2),
            torch.nn.Linear(5, 1),
            torch.nn.Linear(5, 3),
        )

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.cat([x.reshape(-1, 3), self.embedding(k)], dim=1)
        return self.line(both), self.classes(both)


def accuracy(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (output.argmax(dim=1) == label).float().mean()


def test_several_inputs_outputs_losses_and_metrics(tmp_path: Path) -> None:
    path, model = written(tmp_path), TwoInputs()
    made = estimator(
        model,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.05),
        feature_cols=["x", "k"],
        label_cols=["y", "k"],
        categorical_cols=["k"],
        input_shapes=[[-1, 1, 3], None],
        loss_weights=[0.5, 2.0],
        loss_constructors=[torch.nn.MSELoss, torch.nn.CrossEntropyLoss],
        loss=None,
        metrics=[[], [accuracy]],
        epochs=12,
        validation=None,
        backend=Pool(2),
    )
    trained = made.fit_on_parquet(path, path)
    last = trained.getHistory()[-1]
    assert last["train"].keys() == {"loss", "k_accuracy", "all_metrics"}
    assert last["validation"]["k_accuracy"] > 0.8
    assert last["validation"]["all_metrics"] == [[], [last["validation"]["k_accuracy"]]]
    given = columns()
    x, k = torch.tensor(given["x"]).float(), torch.tensor(given["k"])
    line, classes = trained.getModel()(x, k)
    y = torch.tensor(given["y"]).float().reshape(-1, 1)
    expected = 0.5 * functions.mse_loss(line, y) + 2.0 * functions.cross_entropy(classes, k)
    assert min(losses(trained, "validation")) == pytest.approx(expected.item(), rel=1e-5)


def test_shapes_of_inputs_are_those_of_a_batch_or_of_a_row(tmp_path: Path) -> None:
    x = np.zeros((4, 6), np.float32)
    for shape, expected in (
        ([-1, 2, 3], (4, 2, 3)),
        ([2, 3], (4, 2, 3)),
        ([6], (4, 6)),
        ([32, 3, 2], (4, 3, 2)),  # batches of 32, the last of which is shorter
        ([1, 6], (4, 1, 6)),
    ):
        assert inputs_of([x], [False], [shape], torch.float32, "cpu")[0].shape == expected
    assert inputs_of([x[:, 0]], [False], [[-1]], torch.float32, "cpu")[0].shape == (4,)
    trained = estimator(input_shapes=[[3]], epochs=1).fit_on_parquet(written(tmp_path))
    np.testing.assert_array_equal(
        weights(trained.getModel()),
        weights(estimator(epochs=1).fit_on_parquet(written(tmp_path)).getModel()),
    )


def test_columns_that_a_function_changes(tmp_path: Path) -> None:
    def changed(rows: Any) -> Any:
        rows["x"] = [list(each[:2]) for each in rows["x"]]
        rows["y"] = 2 * rows["y"]
        return rows

    path, model = written(tmp_path), net(1, inputs=2)
    made = estimator(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        epochs=1,
        batch_size=ROWS,
        shuffle=False,
        transformation_fn=changed,
        transformation_edit_fields=[("x", np.float32, (2,), False)],
    )
    given, before = columns(), copy.deepcopy(model)
    output = before(torch.tensor(given["x"][:, :2]).float()).reshape(-1)
    expected = functions.mse_loss(output, 2 * torch.tensor(given["y"]).float()).item()
    assert losses(made.fit_on_parquet(path)) == pytest.approx([expected], rel=1e-5)
    with pytest.raises(DataError, match=mentioning("transformation_fn", "1", "2", "row")):
        made.setTransformationFn(lambda rows: rows.head(1)).fit_on_parquet(path)

    def of_a_row(row: Any) -> Any:
        assert (type(row), row["x"].shape, row["y"].shape) == (dict, (3,), ())
        row["x"] *= 0  # of this row alone: the next epoch has it as it was
        return {"x": torch.tensor(given["x"][0, :2]), "y": 2 * row["y"], "other": "text"}

    rows = ByRow(**{param.name: value for param, value in made.extractParamMap().items()})
    rows.setTransformationFn(of_a_row).setEpochs(2).setOptimizer(
        lambda each: torch.optim.SGD(each, lr=0.0)
    )
    output = model(torch.tensor(given["x"][0, :2]).float()).item()
    expected = ((output - 2 * given["y"]) ** 2).mean()
    assert losses(rows.fit_on_parquet(path)) == pytest.approx([expected] * 2, rel=1e-5)
    with pytest.raises(
        DataError,
        match=mentioning("AttributeError", "'assign'"),
    ):
        rows.setTransformationFn(lambda frame: frame.assign(y=0)).fit_on_parquet(path)


class ByRow(TorchEstimator):
    """An estimator whose ``transformation_fn`` gets single rows, as in horovod.spark."""

    _by_row = True


def test_options_of_data_reach_training_and_predictions(tmp_path: Path) -> None:
    given = from_parquet(
        written(tmp_path), columns=["x", "y"], dtypes={"x": "float32"}, fill={"y": 1.0}
    )
    made = estimator(data_options={"fill": {"x": 0.0}})
    columns = made._columns()
    opened = made._opened(given, columns, {})
    assert opened.column_options == ({}, {"x": "float32"}, {"y": 1.0, "x": 0.0}, {})
    assert reading(opened, columns) == {"dtypes": ["float32"], "fill": [0.0], "shapes": [(3,)]}


def test_predictions_have_the_digits_of_the_model() -> None:
    class Ids(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x[:, 0] + 0.12, x[:, 0].long() + 2**24 + 1

    model = Loader(cloudpickle.dumps(Ids()), [False], None)()
    first, second = model(np.array([[4.0], [8.0]]))
    assert second.tolist() == [2**24 + 5, 2**24 + 9]
    wide = Loader(cloudpickle.dumps(torch.nn.Linear(1, 1).double()), [False], None)()
    assert first.dtype == wide(np.ones((1, 1)))[0].dtype == np.float64


def test_a_category_beyond_its_table_is_reported_with_its_column(tmp_path: Path) -> None:
    class Tables(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small, self.large = torch.nn.Embedding(3, 1), torch.nn.Embedding(9, 1)

        def forward(self, k: Any, m: Any) -> Any:
            return self.small(k.long()) + self.large(m.long())

    rows = {"k": [0, 1, 2] * 6, "m": list(range(9)) * 2, "y": [1.0] * 18}
    pq.write_table(pa.table(rows), tmp_path / "good.parquet")
    pq.write_table(pa.table({**rows, "k": [*rows["k"][:-1], 11]}), tmp_path / "bad.parquet")
    good, bad = (str(tmp_path / f"{name}.parquet") for name in ("good", "bad"))
    values_named = ("3 rows", "0", "2", "11", "'k'")
    names = {"feature_cols": ["k", "m"], "epochs": 1, "batch_size": 4}
    for paths in ((bad, None), (good, bad)):
        with pytest.raises(DataError, match=mentioning(values_named)):
            estimator(Tables(), **names).fit_on_parquet(*paths)
    found = estimator(Tables(), **names).fit_on_parquet(good)
    with pytest.raises(DataError, match=mentioning(values_named)):
        found.loader()()(np.array([0, 11]), np.array([0, 8]))

    def fails(k: Any, m: Any) -> Any:
        raise IndexError("the program's own")

    model = Tables()
    model.forward = fails  # type: ignore[method-assign]
    with (
        pytest.raises(IndexError, match="the program's own"),
        naming(model, ["k", "m"], [torch.ones(1)] * 2),
    ):
        model(torch.ones(1), torch.ones(1))


def test_columns_with_nan_in_files_are_reported_before_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = columns()
    known["x"][[3, 50]], known["x"][50, 1], known["y"][7] = np.nan, np.inf, -np.inf
    known["x"][50, ::2] = 0.0
    known["z"][:] = np.nan  # which is not read
    path = str(tmp_path / "nan.parquet")
    lists = {name: list(values) if values.ndim > 1 else values for name, values in known.items()}
    pq.write_table(pa.table(lists), path, row_group_size=20)
    with pytest.raises(AssertionError, match=mentioning("training")):
        estimator(backend=Never(1)).fit_on_parquet(written(tmp_path), path)
    for column in (
        "label column 'y' holds {} in 1 of 61 rows",
        "feature column 'x' holds {} in 2 of 61 rows",
    ):
        assert column.format("NaN or infinite numbers") in caplog.text
    assert caplog.text.count("NaN or infinite numbers in") == 2
    caplog.clear()
    with pytest.raises(AssertionError, match=mentioning("training")):
        estimator(backend=Never(1)).fit_on_parquet(written(tmp_path))
    assert caplog.text == ""
