"""More rows than a rank may hold do not accumulate in a fit."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.kits.memory import ROWS, WIDTH, grown, write

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("torch", reason="torch is not installed")

HERE = """
from farandole.estimators.backend import Backend

class Here(Backend):
    def run(self, function, args=(), kwargs=None, env=None):
        return [function(*args, **(kwargs or {}))]

    def num_processes(self):
        return 1
"""

PREPARE = """
import torch
from farandole.estimators import TorchEstimator

def fit(path):
    model = torch.nn.Linear(256, 256)
    TorchEstimator(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss="mse_loss", feature_cols=["x"],
        label_cols=["x"], batch_size=1000, epochs=1, verbose=0, backend=Here(),
    ).fit_on_parquet(path)

fit({small!r})
"""


def test_rows_do_not_pile_up_in_a_rank(tmp_path: Path) -> None:
    large, small = (
        write(tmp_path / "large.parquet", 2 * ROWS, 4096),
        write(tmp_path / "small.parquet", 4096, 4096),
    )
    assert grown(HERE + PREPARE.format(small=small), f"fit({large!r})") < ROWS * WIDTH * 4, (
        "half of the rows"
    )


SEEDS = """
import random, sys
import keras, numpy as np, torch
from farandole.estimators.trainers.keras.seeds import seed_all

def drawn(seed):
    seed(7)
    return random.random(), np.random.rand(), float(torch.rand(1)), float(keras.random.uniform((1,))[0])

found = drawn(lambda number: seed_all(keras, number))
assert "tensorflow" not in sys.modules
assert found == drawn(keras.utils.set_random_seed) == drawn(lambda number: seed_all(keras, number))
"""


@pytest.mark.skipif(
    not (find_spec("keras") and find_spec("tensorflow")),
    reason="Keras and TensorFlow are not there",
)
def test_seeds_of_keras_on_torch_do_not_load_tensorflow() -> None:
    """TensorFlow would take most of a rank's memory, and the random numbers are the same without
    it.
    """
    done = subprocess.run(
        [sys.executable, "-c", SEEDS],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
