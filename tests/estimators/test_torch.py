"""TorchEstimator: what it trains is what a plain loop of PyTorch trains on the same rows."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from farandole.data import Store, from_parquet, from_spark
from farandole.errors import DataError, SettingsError
from farandole.estimators import Callback, TorchEstimator, TorchModel
from farandole.estimators.batches import first
from farandole.estimators.loaders.torch import Loader, inputs_of, naming, output_list
from farandole.estimators.spark.estimator import reading
from farandole.estimators.spec import Result
from farandole.estimators.trainers.torch.losses import Objective, _matched
from farandole.estimators.trainers.torch.tensors import tensors
from tests.estimators.tools import ROWS, Never, Pool, columns, frame, weighted, written
from tests.kits.messages import mentioning

RATE, BATCH, EPOCHS = 0.1, 8, 3
functions = torch.nn.functional


def net(outputs: int = 1, inputs: int = 3) -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, 4), torch.nn.Tanh(), torch.nn.Linear(4, outputs)
    )


def estimator(given_model: torch.nn.Module | None = None, **params: Any) -> TorchEstimator:
    model = net() if given_model is None else given_model
    given: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9),
        "loss": "mse_loss",
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "random_seed": 5,
        "scale_lr": False,
        "verbose": 0,
        "backend": Pool(1),
    }
    if "num_proc" in params:
        del given["backend"]
    return TorchEstimator(**{**given, **params})


def plain(
    data: Any,
    batch: int = BATCH,
    epochs: int = EPOCHS,
    rate: float = RATE,
    shuffle: bool = True,
    model: Any = None,
) -> Any:
    """A loop of the user's own, on one process: the model, and the loss of each epoch."""
    model = net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    reader, losses = data.numpy(batch, seed=5, shuffle=shuffle, rank=0, size=1), []
    for _ in range(epochs):
        total = 0.0
        for rows in reader:
            optimizer.zero_grad()
            x, y = torch.tensor(rows["x"]).float(), torch.tensor(rows["y"]).float()
            loss = functions.mse_loss(model(x).reshape(-1), y)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        losses.append(total / data.rows)
    return model, losses


def weights(model: Any) -> np.ndarray:
    return np.concatenate([each.detach().numpy().ravel() for each in model.parameters()])


class Named(torch.nn.Module):
    """Two outputs, by the names of labels or in a list of them."""

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


def test_outputs_with_the_name_of_another_label_are_told() -> None:
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


def test_numbers_that_are_no_classes_and_no_categories_are_told(tmp_path: Path) -> None:
    path = written(tmp_path)
    of_classes = {"loss": "cross_entropy", "label_cols": ["z"]}
    with pytest.raises(DataError, match=mentioning("0", "label", "loss")):
        estimator(net(4), **of_classes, backend=Never(1)).fit_on_parquet(path)
    with pytest.raises(DataError, match=mentioning("int64", "1.62")):
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


def losses(model: Any, part: str = "train") -> list[float]:
    return [record[part]["loss"] for record in model.getHistory()]


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_on_parquet_is_that_of_a_plain_loop(ranks: int, tmp_path: Path) -> None:
    path = written(tmp_path)
    expected, numbers = plain(from_parquet(path, columns=["x", "y"]), batch=2 * (BATCH // 2))
    model = estimator(backend=Pool(ranks), batch_size=BATCH // ranks).fit_on_parquet(path)
    np.testing.assert_allclose(weights(model.getModel()), weights(expected), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(losses(model), numbers, rtol=1e-5)
    assert model.getHistory()[0]["epoch"] == 0


def test_parametrized_modules_are_trained_as_others(tmp_path: Path) -> None:
    given = net()
    torch.nn.utils.parametrizations.weight_norm(given[0])
    path = written(tmp_path)
    expected, _ = plain(from_parquet(path, columns=["x", "y"]), model=copy.deepcopy(given))
    model = estimator(given, backend=Pool(2), batch_size=BATCH // 2).fit_on_parquet(path)
    np.testing.assert_allclose(weights(model.getModel()), weights(expected), rtol=1e-4, atol=1e-6)
    rows = torch.randn(3, 3)
    predict = model.loader()()
    np.testing.assert_allclose(
        np.ravel(predict(rows.numpy())), expected(rows).detach().numpy().ravel(), rtol=1e-4
    )


def test_ranks_on_spark_tasks_train_as_one_process_and_predict(spark: Any, scratch: Path) -> None:
    rows = frame(spark)
    with from_spark(rows, columns=["x", "y"]) as data:
        expected, numbers = plain(data)
    given = net()
    before = weights(given)
    model = estimator(given, num_proc=2, batch_size=BATCH // 2).fit(rows)
    np.testing.assert_allclose(weights(model.getModel()), weights(expected), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(losses(model), numbers, rtol=1e-5)
    assert np.array_equal(weights(given), before)  # the user's own is as it was
    found = model.transform(rows).select("x", "y__output", "y").toPandas()
    assert len(found) == ROWS
    x = torch.tensor(np.stack(found["x"])).float()
    np.testing.assert_allclose(
        found["y__output"], model.getModel()(x).detach().numpy().ravel(), rtol=1e-5
    )
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rate_per_rank_is_scaled_while_training_and_comes_back(
    ranks: int, tmp_path: Path
) -> None:
    path = written(tmp_path)
    expected, _ = plain(from_parquet(path, columns=["x", "y"]), rate=RATE * ranks)
    model = estimator(backend=Pool(ranks), batch_size=BATCH // ranks, scale_lr=True).fit_on_parquet(
        path
    )
    np.testing.assert_allclose(weights(model.getModel()), weights(expected), rtol=1e-4, atol=1e-6)
    assert model.getOptimizer().param_groups[0]["lr"] == RATE


def test_weights_of_rows_count_as_rows_that_are_there_as_often(tmp_path: Path) -> None:
    """A whole epoch is one batch, so that its mean is that over all rows."""
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


@pytest.mark.parametrize("case", ["weights", "ignored", "sequence"])
def test_a_mean_over_what_counts_is_that_of_one_process(case: str, tmp_path: Path) -> None:
    """By the weights of classes, and without labels that do not count, of which one rank may have
    none.
    """
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
    ("metric", "told"),
    [
        (lambda output, label: output - label.reshape(-1, 5), "shape"),
        (lambda output, label: output, "Scalar"),
    ],
)
def test_a_metric_that_gives_no_number_is_named_with_its_label(
    tmp_path: Path, metric: Any, told: str
) -> None:
    training = estimator(net(), metrics=[metric], epochs=1, backend=Pool(1))
    with pytest.raises(
        Exception,
        match=mentioning("torch.float32", "[1]"),
    ) as error:
        training.fit_on_parquet(written(tmp_path))
    assert told in str(error.value)


class Freeing(Callback):
    """The first layer is trained from the second epoch on."""

    def __init__(self, group: bool) -> None:
        self.group = group

    def on_epoch_begin(self, epoch: int) -> None:
        if epoch == 1:
            self.model[0].requires_grad_(True)
            if self.group:
                self.optimizer.add_param_group(
                    {"params": [*self.model[0].parameters()], "lr": RATE}
                )


def test_a_callback_frees_layers_of_which_the_optimizer_knows(tmp_path: Path) -> None:
    model, path = net(), written(tmp_path)
    model[0].requires_grad_(False)
    one, two = (
        estimator(
            model, callbacks=[Freeing(False)], batch_size=16 // ranks, backend=Pool(ranks)
        ).fit_on_parquet(path)
        for ranks in (1, 2)
    )
    assert not np.allclose(weights(model), weights(one.getModel()))
    np.testing.assert_allclose(
        weights(two.getModel()), weights(one.getModel()), rtol=1e-5, atol=1e-6
    )
    optimizer = torch.optim.SGD(model[2].parameters(), lr=RATE)
    other = estimator(model, optimizer=optimizer, callbacks=[Freeing(True)])
    with pytest.raises(
        Exception,
        match=mentioning("2", "1", "parameters", "training"),
    ):
        other.fit_on_parquet(path)


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


def test_the_best_epoch_is_the_model_and_patience_ends_training(tmp_path: Path) -> None:
    train, held = written(tmp_path), written(tmp_path, 20, "held.parquet")
    wild = net()
    grows = torch.optim.SGD(wild.parameters(), lr=0.01)

    class Wilder(Callback):
        """Each epoch from the fourth on is worse."""

        def on_epoch_begin(self, epoch: int) -> None:
            self.optimizer.param_groups[0]["lr"] = 0.01 if epoch < 3 else 30.0

    trained = estimator(
        wild,
        optimizer=grows,
        callbacks=[Wilder()],
        epochs=20,
        patience=2,
        backend=Pool(2),
        batch_size=4,
    ).fit_on_parquet(train, held)
    found = losses(trained, "validation")
    assert len(found) == 5
    assert int(np.nanargmin(found)) == 2
    given = columns(20)
    output = trained.getModel()(torch.tensor(given["x"]).float()).reshape(-1)
    assert functions.mse_loss(output, torch.tensor(given["y"]).float()).item() == pytest.approx(
        found[2], rel=1e-5
    )


def test_a_callback_of_one_rank_ends_training_on_all(tmp_path: Path) -> None:
    class Enough(Callback):
        def on_epoch_end(self, epoch: int, logs: Any) -> None:
            import farandole.torch as hvd

            self.stop_training = hvd.rank() == 1 and epoch == 1

    trained = estimator(callbacks=[Enough()], epochs=9, backend=Pool(2)).fit_on_parquet(
        written(tmp_path)
    )
    assert len(trained.getHistory()) == 2


def test_a_run_goes_on_after_its_last_checkpoint(tmp_path: Path) -> None:
    path, store = written(tmp_path), Store.create(str(tmp_path / "store"))
    options: dict[str, Any] = {
        "run_id": "first",
        "store": store,
        "train_steps_per_epoch": 5,
        "batch_size": 4,
    }
    whole = estimator(**{**options, "run_id": "whole"}, epochs=4, backend=Pool(2)).fit_on_parquet(
        path, path
    )
    estimator(**options, epochs=2, backend=Pool(2)).fit_on_parquet(path, path)
    assert [Path(each).name for each in store.get_checkpoints("first")] == [
        "epoch-0.ckpt",
        "epoch-1.ckpt",
    ]
    rest = estimator(**options, epochs=4, backend=Pool(2)).fit_on_parquet(path, path)
    assert rest.getHistory() == whole.getHistory()
    assert np.array_equal(weights(rest.getModel()), weights(whole.getModel()))
    # nothing is left to do
    again = estimator(**options, epochs=4, backend=Pool(1)).fit_on_parquet(path, path)
    assert again.getHistory() == whole.getHistory()
    assert again.getRunId() == "first"


def test_several_batches_make_a_step_and_the_users_step_is_used(tmp_path: Path) -> None:
    path = written(tmp_path)
    data = from_parquet(path, columns=["x", "y"])
    expected, numbers = plain(data, batch=32, shuffle=False)

    def own(
        model: Any,
        optimizer: Any,
        transform: Any,
        loss_fn: Any,
        inputs: Any,
        labels: Any,
        weights: Any,
    ) -> Any:
        optimizer.zero_grad()
        outputs, labels = transform(model(*inputs), labels)
        loss = loss_fn(outputs, labels, weights)
        loss.backward()
        optimizer.step()
        return outputs, loss + 1.0

    mine = estimator(
        batch_size=16, shuffle=False, train_minibatch_fn=own, backend=Pool(2)
    ).fit_on_parquet(path)
    np.testing.assert_allclose(weights(mine.getModel()), weights(expected), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(losses(mine), [number + 1.0 for number in numbers], rtol=1e-4)

    def another(
        model: Any, optimizer: Any, transform: Any, loss_fn: Any, inputs: Any, *_: Any
    ) -> Any:
        return model(*inputs), 7.0  # a loss of its own

    assert losses(estimator(epochs=1, train_minibatch_fn=another).fit_on_parquet(path)) == [7.0]
    with pytest.raises(Exception, match=mentioning("NoneType", "loss")):
        estimator(
            epochs=1, train_minibatch_fn=lambda *given: (given[0](*given[4]), None)
        ).fit_on_parquet(path)
    passes = estimator(batch_size=8, backward_passes_per_step=3, backend=Pool(2)).fit_on_parquet(
        path
    )
    assert losses(passes)[-1] < losses(passes)[0]


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


class Margin(torch.nn.MSELoss):
    def __init__(self, margin: float) -> None:
        super().__init__()


class OfModel(torch.nn.MSELoss):
    def __init__(self, model: Any, rate: float = 0.5) -> None:
        super().__init__()


class ByRow(TorchEstimator):
    """As horovod.spark has it."""

    _by_row = True


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"label_cols": ["q"]}, ("Column q", "x, y, k, w, z")),
        (
            {"loss": "mse_los"},
            ("loss='mse_los'", "torch.nn.functional", "'mse_loss'"),
        ),
        ({"loss": None}, ("Loss", "parameter")),
        (
            {"store": Store.create("memory://runs")},
            "store='memory://runs'",
        ),
        (
            {"optimizer": torch.optim.SGD(net().parameters(), lr=1.0)},
            "parameters",
        ),
        (
            {"feature_cols": ["x", "z"]},
            ("x float64[3]", "z float64[]"),
        ),
        ({"label_cols": ["y", "z"]}, ("1", "2", "model", "outputs")),
        (
            {"label_cols": ["x"], "loss": torch.nn.BCELoss()},
            ("(1,)", "loss"),
        ),
        ({"batch_size": 0}, ("batch_size=0", "1")),
        ({"validation": 1.5}, ("1.5", "[0, 1)")),
        ({"validation": 0.5}, ("validation=0.5", "DataFrames")),
        ({"monitor": "val_loss"}, "monitor='val_loss'"),
        ({"patience": 1}, "patience=1"),
        ({"model": "net"}, ("torch.nn.Module", "str")),
        (
            {"loss": Margin},
            (("loss", "Margin(margin=...)")),
        ),
        (
            {"metrics": [Margin]},
            ("metrics", "Margin(margin=...)"),
        ),
        (
            {"loss": torch.nn.MSELoss},
            ("MSELoss()", "loss"),
        ),
        (
            {"loss_constructors": [Margin], "loss": None},
            (("loss_constructors", "lambda: Margin(margin=...)")),
        ),
        (
            {"loss_constructors": [OfModel], "loss": None},
            ("OfModel", "lambda: OfModel(model=...)"),
        ),
        (
            {"loss_constructors": [torch.nn.MSELoss]},
            "loss_constructors",
        ),
        ({"loss_weights": [1.0, 2.0]}, ("loss_weights", "label")),
        (
            {"reader_pool_type": "threads"},
            ("reader_pool_type='threads'", "thread", "dummy", "process"),
        ),
        (
            {"sample_weight_col": "w", "loss": lambda o, t: (o - t).mean()},
            ("loss", "argument"),
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input_is_one_error_before_ranks_start(
    params: dict[str, Any], says: str | tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises((DataError, SettingsError), match=mentioning(says)):
        estimator(**{"backend": Never(1), **params}).fit_on_parquet(written(tmp_path))


def test_local_ranks_without_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("farandole.job.spark.session.context", lambda: None)
    found = estimator(num_proc=2, epochs=2, verbose=1).fit_on_parquet(written(tmp_path))
    assert len(found.getHistory()) == 2
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert [line.partition(": ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert " loss " in lines[0]
    assert "rows/s" in lines[0]


def test_weights_of_a_gpu_reach_a_driver_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gpus(Pool):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            return [result]

    model, file = net(), io.BytesIO()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    result = Result([], file.getvalue(), None)
    found = estimator(backend=Gpus(1)).fit_on_parquet(written(tmp_path))
    assert np.array_equal(weights(found.getModel()), weights(model))


def test_runs_have_their_own_names_and_record_their_origin(tmp_path: Path) -> None:
    data = from_parquet(written(tmp_path), columns=["x", "y"])
    first, second = (estimator()._spec(data, None) for _ in range(2))
    assert first.run_id != second.run_id
    assert not first.resume
    assert first.fingerprint == second.fingerprint
    model = net()
    slower = estimator(
        model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), run_id="named"
    )._spec(data, None)
    assert slower.resume
    assert slower.fingerprint["optimizer"] != first.fingerprint["optimizer"]
    fewer = from_parquet(written(tmp_path, 50, "fewer.parquet"), columns=["x", "y"])
    assert estimator()._spec(fewer, None).fingerprint["rows"] == 50
    other = torch.nn.Sequential(model, torch.nn.Tanh())
    assert estimator(other)._spec(data, None).fingerprint["model"] != first.fingerprint["model"]
    for name, value in (
        ("loss", torch.nn.HuberLoss(delta=2.0)),
        ("monitor", "loss"),
        ("transformation_fn", weights),
    ):
        assert (
            estimator(**{name: value})._spec(data, None).fingerprint[name]
            != first.fingerprint[name]
        )


def test_options_of_data_reach_training_and_predictions(tmp_path: Path) -> None:
    given = from_parquet(
        written(tmp_path), columns=["x", "y"], dtypes={"x": "float32"}, fill={"y": 1.0}
    )
    made = estimator(data_options={"fill": {"x": 0.0}})
    columns = made._columns()
    opened = made._opened(given, columns, {})
    assert opened.column_options == ({}, {"x": "float32"}, {"y": 1.0, "x": 0.0}, {})
    assert reading(opened, columns) == {"dtypes": ["float32"], "fill": [0.0], "shapes": [(3,)]}


def test_running_statistics_are_those_of_all_ranks(tmp_path: Path) -> None:
    """One row is left over, which is no batch of its own."""
    path, x = written(tmp_path, 65), torch.tensor(columns(65)["x"]).float()
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3, momentum=1.0), torch.nn.Linear(3, 1))
    found = estimator(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        backend=Pool(2),
        batch_size=16,
        epochs=1,
        train_steps_per_epoch=1,
        shuffle=False,
    ).fit_on_parquet(path)
    torch.testing.assert_close(found.getModel()[0].running_mean, x[:32].mean(0))
    whole = estimator(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        backend=Pool(2),
        batch_size=32,
        epochs=2,
    ).fit_on_parquet(path, path)
    assert len(whole.getHistory()) == 2


def test_predictions_have_the_digits_of_the_model() -> None:
    class Ids(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x[:, 0] + 0.12, x[:, 0].long() + 2**24 + 1

    model = Loader(cloudpickle.dumps(Ids()), [False], None)()
    first, second = model(np.array([[4.0], [8.0]]))
    assert second.tolist() == [2**24 + 5, 2**24 + 9]
    wide = Loader(cloudpickle.dumps(torch.nn.Linear(1, 1).double()), [False], None)()
    assert first.dtype == wide(np.ones((1, 1)))[0].dtype == np.float64


def test_a_category_beyond_its_table_is_told_with_its_column(tmp_path: Path) -> None:
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
    told = ("3 rows", "0", "2", "11", "'k'")
    names = {"feature_cols": ["k", "m"], "epochs": 1, "batch_size": 4}
    for paths in ((bad, None), (good, bad)):
        with pytest.raises(DataError, match=mentioning(told)):
            estimator(Tables(), **names).fit_on_parquet(*paths)
    found = estimator(Tables(), **names).fit_on_parquet(good)
    with pytest.raises(DataError, match=mentioning(told)):
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


def test_an_optimizer_keeps_what_its_pickle_leaves_out(tmp_path: Path) -> None:
    """LBFGS its list of parameters: a step of a function that has made its gradients before."""

    def step(
        model: Any,
        optimizer: Any,
        matched: Any,
        loss_of: Any,
        inputs: Any,
        labels: Any,
        weights: Any,
    ) -> Any:
        optimizer.zero_grad()
        outputs, labels = matched(model(*inputs), labels)
        loss = loss_of(outputs, labels, weights)
        loss.backward()
        optimizer.step(lambda: loss)
        return outputs, loss

    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=1)
    options: dict[str, Any] = {
        "optimizer": optimizer,
        "shuffle": False,
        "batch_size": ROWS,
        "epochs": 1,
    }
    found = estimator(model, **options, train_minibatch_fn=step).fit_on_parquet(written(tmp_path))
    expected, known = net(), columns()
    x, y = torch.tensor(known["x"]).float(), torch.tensor(known["y"]).float()
    own = torch.optim.LBFGS(expected.parameters(), lr=0.1, max_iter=1)
    loss = functions.mse_loss(expected(x).reshape(-1), y)
    loss.backward()
    own.step(lambda: loss)
    np.testing.assert_allclose(weights(found.getModel()), weights(expected), rtol=1e-4)
    assert found.getOptimizer()._params[0] is next(found.getModel().parameters())


def test_an_optimizer_is_read_with_what_its_pickle_leaves_out(spark: Any, tmp_path: Path) -> None:
    model = net()
    written_one = estimator(model, optimizer=torch.optim.LBFGS(model.parameters()))
    metadata = {"feature_columns": ["x"], "label_columns": ["y"]}
    trained = TorchModel(model=model, optimizer=written_one.getOptimizer(), **metadata)
    for place, (kind, each) in enumerate([(TorchEstimator, written_one), (TorchModel, trained)]):
        each.write().save(str(tmp_path / str(place)))
        found = kind.load(str(tmp_path / str(place)))
        assert [id(one) for one in found.getOptimizer()._params] == [
            id(one) for one in found.getModel().parameters()
        ]
        found.getOptimizer().step(lambda: torch.zeros(()))


def test_columns_with_nan_in_files_are_told_before_training(
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
    for told in (
        "label column 'y' holds {} in 1 of 61 rows",
        "feature column 'x' holds {} in 2 of 61 rows",
    ):
        assert told.format("NaN or infinite numbers") in caplog.text
    assert caplog.text.count("NaN or infinite numbers in") == 2
    caplog.clear()
    with pytest.raises(AssertionError, match=mentioning("training")):
        estimator(backend=Never(1)).fit_on_parquet(written(tmp_path))
    assert caplog.text == ""


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
def test_weights_of_rows_that_are_none_are_told_before_training(
    values: dict[int, float], says: str | tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=mentioning(says)):
        estimator(sample_weight_col="w", backend=Never(1)).fit_on_parquet(
            weighted(tmp_path, values)
        )


def test_wrong_weights_that_a_function_makes_end_the_training(tmp_path: Path) -> None:
    """Those that files hold do not count then."""

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
    """Batches of nothing else neither."""
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


def test_constructors_of_losses_get_what_they_ask_for(tmp_path: Path) -> None:
    """As Horovod's get its local variables. A loss of the model's parameters is one of those on the
    rank.
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
