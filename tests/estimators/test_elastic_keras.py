"""KerasEstimator in an elastic job: a killed rank does not end the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

from farandole.data import from_parquet
from tests.estimators import elastic_tools
from tests.estimators.elastic_tools import RATE
from tests.estimators.keras_tools import BATCH, estimator, plain
from tests.estimators.tools import written


def callback(folder: Path) -> Any:
    class Killed(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            import farandole.keras as hvd

            self.stops = elastic_tools.begin(folder, epoch, hvd.rank(), hvd.size())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training |= self.stops

    return Killed()


@pytest.mark.slow
def test_a_killed_rank_does_not_end_a_fit(tmp_path: Path) -> None:
    path, seen = written(tmp_path), tmp_path / "seen"
    seen.mkdir()
    model = estimator(
        optimizer=keras.optimizers.SGD(RATE, momentum=0.9),
        backend=elastic_tools.backend(),
        batch_size=BATCH // 2,
        epochs=1000,
        callbacks=[callback(seen)],
    ).fit_on_parquet(path)
    _, expected = plain(from_parquet(path, columns=["x", "y"]), rate=RATE)
    elastic_tools.check(seen, model.getHistory()["loss"], expected)
