"""More rows than a rank may hold: those of a fit do not pile up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kits.memory import ROWS, WIDTH, grown, write

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("torch", reason="torch is not installed")

PREPARE = """
import torch
import farandole.torch as hvd
from farandole.estimators import TorchEstimator
from farandole.estimators.backend import Backend

class Here(Backend):
    def run(self, function, args=(), kwargs=None, env=None):
        hvd.init()
        return [function(*args, **(kwargs or {{}}))]

    def num_processes(self):
        return 1

def fit(path):
    model = torch.nn.Linear(256, 256)
    TorchEstimator(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss="mse_loss", feature_cols=["x"],
        label_cols=["x"], batch_size=1000, epochs=1, verbose=0, backend=Here(),
    ).fit_on_parquet(path)

fit({small!r})
"""


def test_rows_do_not_pile_up_in_a_rank(tmp_path: Path) -> None:
    large, small = write(tmp_path / "large.parquet", 2 * ROWS, 4096), write(tmp_path / "small.parquet", 4096, 4096)
    assert grown(PREPARE.format(small=small), f"fit({large!r})") < ROWS * WIDTH * 4, "half of the rows"
