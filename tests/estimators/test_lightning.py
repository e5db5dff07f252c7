"""LightningEstimator trains a module of Lightning 2 like a plain loop on the same rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from farandole.data import Store, from_parquet
from farandole.errors import DataError, SettingsError
from farandole.estimators import LightningEstimator
from farandole.estimators.batches import Batch
from farandole.estimators.spec import Columns
from tests.estimators.tools import Pool, written
from tests.estimators.torch_tools import BATCH, EPOCHS, RATE, net, plain, weights
from tests.kits.messages import mentioning, mentions

pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
functions = torch.nn.functional


def module(rate: float = RATE, package: Any = pl) -> Any:
    class Net(package.LightningModule):  # not importable on ranks: it is sent
        def __init__(self) -> None:
            super().__init__()
            self.layers = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = functions.mse_loss(self(batch["x"]).reshape(-1), batch["y"])
            self.log("train_mse", loss, on_step=False, on_epoch=True, batch_size=len(batch["y"]))
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            loss = functions.mse_loss(self(batch["x"]).reshape(-1), batch["y"])
            self.log("val_loss", loss, batch_size=len(batch["y"]))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=rate, momentum=0.9)
            schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
            return {"optimizer": optimizer, "lr_scheduler": schedule}

    return Net()


def estimator(**params: Any) -> LightningEstimator:
    given: dict[str, Any] = {
        "model": module(),
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "random_seed": 5,
        "verbose": 0,
        "backend": Pool(1),
    }
    return LightningEstimator(**{**given, **params})


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_on_parquet_is_that_of_a_plain_loop(ranks: int, tmp_path: Path) -> None:
    path = written(tmp_path)
    expected, losses = plain(from_parquet(path, columns=["x", "y"]))
    store = Store.create(str(tmp_path / "store"))
    options: dict[str, Any] = {
        "backend": Pool(ranks),
        "batch_size": BATCH // ranks,
        "store": store,
        "run_id": "first",
    }
    estimator(**options, epochs=1).fit_on_parquet(path, path)
    found = estimator(**options).fit_on_parquet(path)  # continues after the first epoch
    history = found.getHistory()
    np.testing.assert_allclose([record["train"]["loss"] for record in history], losses, rtol=1e-4)
    assert history[-1]["train"]["train_mse"] == pytest.approx(losses[-1], rel=1e-4)
    assert history[0]["validation"]["loss"] < history[0]["train"]["loss"]
    np.testing.assert_allclose(weights(found.getModel()), weights(expected), rtol=1e-3, atol=1e-5)
    line = found.get_prediction_fn()(found.getModel(), {"x": [1.0, 2.0, 3.0]})
    torch.testing.assert_close(line, found.getModel()(torch.tensor([[1.0, 2.0, 3.0]])).detach())


def test_an_epoch_without_validation_has_no_numbers_of_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    arguments = {"check_val_every_n_epoch": 2}
    found = estimator(trainer_args=arguments, monitor="val_loss", epochs=3).fit_on_parquet(
        path, path
    )
    history = found.getHistory()
    assert ["validation" in record for record in history] == [False, True, False]
    best = estimator(epochs=2).fit_on_parquet(path)
    np.testing.assert_allclose(weights(found.getModel()), weights(best.getModel()), rtol=1e-5)


def test_a_plain_module_and_what_does_not_fit(tmp_path: Path) -> None:
    path, model = written(tmp_path), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    found = estimator(model=model, optimizer=optimizer, loss="mse_loss", epochs=1).fit_on_parquet(
        path
    )
    assert len(found.getHistory()) == 1
    with pytest.raises(SettingsError, match=mentioning("`loss`", "`LightningModule`")):
        estimator(loss="mse_loss").fit_on_parquet(path)
    with pytest.raises(DataError, match=mentioning("forward", "z")):
        estimator(feature_cols=["z"]).fit_on_parquet(path)

    class Iterates(pl.LightningModule):
        def training_step(self, dataloader_iter: Any) -> Any:
            raise AssertionError

    with pytest.raises(
        SettingsError,
        match=mentioning("Iterates.training_step", "dataloader_iter", "batch_idx"),
    ):
        estimator(model=Iterates()).fit_on_parquet(path)
    old = module()
    old.validation_epoch_end = lambda outputs: None
    with pytest.raises(
        SettingsError, match=r"has validation_epoch_end\(outputs\).*in on_validation_epoch_end\("
    ):
        estimator(model=old).fit_on_parquet(path)


def test_a_lightning_module_trains_equally(tmp_path: Path) -> None:
    """The classes of pytorch_lightning are not those of ``lightning``."""
    other = pytest.importorskip("pytorch_lightning")
    path = written(tmp_path)
    # after the second epoch
    stopping = other.callbacks.EarlyStopping("val_loss", patience=1, min_delta=1e9)
    found = estimator(
        model=module(package=other), callbacks=[stopping], backend=Pool(2), batch_size=BATCH // 2
    )
    expected = estimator(backend=Pool(2), batch_size=BATCH // 2, epochs=2).fit_on_parquet(
        path, path
    )
    trained = found.fit_on_parquet(path, path)
    assert isinstance(trained.getModel(), other.LightningModule)
    assert trained.getHistory() == expected.getHistory()
    np.testing.assert_array_equal(weights(trained.getModel()), weights(expected.getModel()))


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_without_a_logger_have_one_that_logs_nothing(ranks: int, tmp_path: Path) -> None:
    class Logs(type(module())):  # type: ignore[misc]
        def training_step(self, batch: Any, index: int) -> Any:
            self.logger.experiment.add_scalar("step", index)
            return super().training_step(batch, index)

    made, path = Logs(), written(tmp_path)
    options: dict[str, Any] = {
        "callbacks": [pl.callbacks.LearningRateMonitor()],
        "epochs": 1,
        "model": made,
    }
    options["backend"] = Pool(ranks)
    estimator(**options).fit_on_parquet(path)
    logger = pl.loggers.CSVLogger(tmp_path, name="logs")
    options["model"] = module()
    estimator(**options, logger=logger, log_every_n_steps=1).fit_on_parquet(path)
    (table,) = tmp_path.rglob("metrics.csv")
    assert "lr-SGD" in table.read_text().splitlines()[0]


def test_gradients_of_several_batches_make_a_step_of_all_ranks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path)
    options: dict[str, Any] = {"epochs": 1, "shuffle": False}
    one = estimator(**options, batch_size=16, train_steps_per_epoch=3).fit_on_parquet(path)
    assert caplog.text == ""
    several = estimator(
        **options,
        batch_size=4,
        train_steps_per_epoch=6,
        trainer_args={"accumulate_grad_batches": 2},
        backend=Pool(2),
        metrics=[functions.mse_loss],
    ).fit_on_parquet(path)
    np.testing.assert_allclose(
        weights(several.getModel()), weights(one.getModel()), rtol=1e-4, atol=1e-6
    )
    assert mentions(caplog.text, "LightningModule", "metrics")


def test_a_module_with_manual_optimization_and_callbacks(
    tmp_path: Path,
) -> None:
    class Own(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.losses, self.automatic_optimization = net(), [], False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

        def training_step(self, batch: Any) -> None:
            loss = functions.mse_loss(self(batch["x"]).reshape(-1), batch["y"])
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.losses.append(loss.item())

        def validation_step(self, batch: Any) -> None:
            assert set(batch) == {"x", "y"}

        def on_after_batch_transfer(self, batch: Any, index: int) -> Any:
            assert set(batch) == {"x", "y"}  # nothing of ours
            return batch

        def on_train_epoch_end(self) -> None:
            self.log("train_mean", sum(self.losses) / len(self.losses))
            self.losses.clear()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=RATE / 5)

    path = written(tmp_path)
    kept = pl.callbacks.ModelCheckpoint(dirpath=tmp_path / "own", monitor="train_mean")
    found = estimator(
        model=Own(),
        trainer_args={"callbacks": [kept]},
        monitor="train_mean",
        mode="min",
        shuffle=False,
        backend=Pool(2),
        batch_size=BATCH // 2,
    ).fit_on_parquet(path, path)
    means = [record["train"]["train_mean"] for record in found.getHistory()]
    assert len(means) == EPOCHS
    assert means[0] > means[1] > means[2] > 0
    assert "loss" not in found.getHistory()[0]["train"]
    assert list((tmp_path / "own").glob("*.ckpt"))


def test_classes_keep_their_digits_in_half_precision() -> None:
    from farandole.estimators.trainers.lightning.rows import given

    spec: Any = SimpleNamespace(
        columns=Columns(("x",), ("k",)),
        payload={"categories": (), "numbers": (), "input_shapes": None},
    )
    batch = Batch((np.eye(2, dtype=np.float32),), (np.array([256.0, 257.0]),), None, 2, 1.0)
    for kind in (torch.bfloat16, torch.float32):
        assert given(batch, spec, module().to(kind))["k"].tolist() == [256, 257], kind
