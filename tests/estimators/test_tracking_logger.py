"""Lightning's metrics in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farandole.job.runs.folder import RUN_VARIABLE, RunFolder
from farandole.job.runs.journal import records
from farandole.job.tracking import tracker

pytest.importorskip("lightning", reason="Lightning is not installed")


def fit(folder: Path) -> Any:
    import lightning.pytorch as pl
    import torch

    from farandole.torch.lightning import TrackingLogger

    class Module(pl.LightningModule):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(width, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            loss = self.layer(batch[0]).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)))
    logger = TrackingLogger()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        log_every_n_steps=2,
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Module(2), data)
    return logger


def test_lightning_logs_into_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(str(tmp_path / "e_1_00000000"))
    monkeypatch.setenv(RUN_VARIABLE, run.path)
    tracker._forget()
    try:
        logger = fit(tmp_path)
        assert (logger.version, logger.save_dir) == (run.run_id, run.file("outputs"))
        found = list(records(run.metrics_of(0)))
        steps = [(each["step"], set(each["values"])) for each in found if "kind" not in each]
        assert steps == [(1, {"loss"}), (3, {"loss"})]
        (params,) = [each["values"] for each in found if each.get("kind") == "params"]
        assert params == {"width": 2}
    finally:
        tracker._forget()


def test_lightning_logs_nothing_outside_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RUN_VARIABLE, raising=False)
    logger = fit(tmp_path)
    assert (logger.version, logger.save_dir) == ("", None)
    assert list(tmp_path.iterdir()) == []
