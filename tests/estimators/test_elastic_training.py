"""Estimators in elastic jobs: a killed rank does not end the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from farandole.data import from_parquet
from farandole.errors import JobFailedError, SettingsError
from farandole.estimators import Callback, LocalBackend
from tests.estimators import elastic_tools
from tests.estimators.elastic_tools import RATE
from tests.estimators.tools import written
from tests.estimators.torch_tools import BATCH, estimator, losses, net, plain
from tests.kits.messages import mentioning


def callback(folder: Path) -> Callback:
    class Killed(Callback):  # not importable on ranks: it is sent
        def on_epoch_begin(self, epoch: int) -> None:
            import farandole.torch as hvd

            self.stop_training = elastic_tools.begin(folder, epoch, hvd.rank(), hvd.size())

    return Killed()


@pytest.mark.slow
def test_a_killed_rank_does_not_end_a_fit(tmp_path: Path) -> None:
    path, seen = written(tmp_path), tmp_path / "seen"
    seen.mkdir()
    given = net()
    model = estimator(
        given,
        optimizer=torch.optim.SGD(given.parameters(), lr=RATE, momentum=0.9),
        backend=elastic_tools.backend(),
        batch_size=BATCH // 2,
        epochs=1000,
        callbacks=[callback(seen)],
    ).fit_on_parquet(path)
    _, expected = plain(from_parquet(path, columns=["x", "y"]), rate=RATE)
    elastic_tools.check(seen, losses(model), expected)
    epochs: list[Any] = [each["epoch"] for each in model.getHistory()]
    assert epochs == list(range(len(epochs)))


def test_bounds_belong_to_the_backend_or_the_estimator() -> None:
    # Local, or on Spark if an earlier test has left a session.
    backend = estimator(num_proc=3, min_num_proc=2)._backend()
    assert backend.num_processes() == 3
    with pytest.raises(SettingsError, match=mentioning("min_num_proc=2", "min_np")):
        estimator(min_num_proc=2)


@pytest.mark.slow
def test_a_fixed_global_batch_is_refused(tmp_path: Path) -> None:
    """Rows are divided among the ranks, for any number of shares."""
    backend = LocalBackend(1, min_np=1, max_np=2, fixed_global_batch=True)
    given = net()
    refused = estimator(
        given, optimizer=torch.optim.SGD(given.parameters(), lr=RATE), backend=backend, epochs=1
    )
    with pytest.raises(JobFailedError, match=mentioning("--fixed-global-batch", "estimator")):
        refused.fit_on_parquet(written(tmp_path))
