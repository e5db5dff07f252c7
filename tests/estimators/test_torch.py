"""TorchEstimator trains like a plain loop of PyTorch on the same rows."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from farandole.data import Store, from_parquet, from_spark
from farandole.errors import DataError, SettingsError
from farandole.estimators import Callback, TorchEstimator, TorchModel
from farandole.estimators.spec import Result
from tests.estimators.tools import ROWS, Never, Pool, columns, frame, written
from tests.estimators.torch_tools import (
    BATCH,
    RATE,
    estimator,
    functions,
    losses,
    net,
    plain,
    weights,
)
from tests.kits.messages import mentioning


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


class Freeing(Callback):
    """A callback that trains the first layer from the second epoch on."""

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


def test_the_best_epoch_is_the_model_and_patience_ends_training(tmp_path: Path) -> None:
    train, held = written(tmp_path), written(tmp_path, 20, "held.parquet")
    wild = net()
    grows = torch.optim.SGD(wild.parameters(), lr=0.01)

    class Wilder(Callback):
        """A callback that makes each epoch from the fourth on worse."""

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


def test_a_run_continues_after_its_last_checkpoint(tmp_path: Path) -> None:
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


class Margin(torch.nn.MSELoss):
    def __init__(self, margin: float) -> None:
        super().__init__()


class OfModel(torch.nn.MSELoss):
    def __init__(self, model: Any, rate: float = 0.5) -> None:
        super().__init__()


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


def test_running_statistics_are_those_of_all_ranks(tmp_path: Path) -> None:
    """One row is left over, which makes no separate batch."""
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


def test_an_optimizer_keeps_values_its_pickle_omits(tmp_path: Path) -> None:
    """LBFGS omits its list of parameters; a step must still use gradients computed before."""

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


def test_an_optimizer_is_read_with_values_its_pickle_omits(spark: Any, tmp_path: Path) -> None:
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
