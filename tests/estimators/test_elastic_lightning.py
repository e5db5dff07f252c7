"""LightningEstimator in an elastic job: a killed rank does not end the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farandole.data import from_parquet
from tests.estimators import elastic_tools, test_lightning
from tests.estimators.elastic_tools import RATE
from tests.estimators.tools import written
from tests.estimators.torch_tools import BATCH, losses, plain

pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")


def callback(folder: Path) -> Any:
    class Killed(pl.Callback):  # type: ignore[misc]
        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            place = trainer.current_epoch, trainer.global_rank, trainer.world_size
            self.stops = elastic_tools.begin(folder, *place)

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            trainer.should_stop |= self.stops

    return Killed()


@pytest.mark.slow
def test_a_killed_rank_does_not_end_a_fit(tmp_path: Path) -> None:
    path, seen = written(tmp_path), tmp_path / "seen"
    seen.mkdir()
    model = test_lightning.estimator(
        model=test_lightning.module(RATE),
        backend=elastic_tools.backend(),
        batch_size=BATCH // 2,
        epochs=1000,
        callbacks=[callback(seen)],
    ).fit_on_parquet(path)
    _, expected = plain(from_parquet(path, columns=["x", "y"]), rate=RATE)
    elastic_tools.check(seen, losses(model), expected)
