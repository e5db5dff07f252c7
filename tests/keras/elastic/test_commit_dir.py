"""Training with strategies that continues from the folder of an earlier job, with Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.keras.backends import QUICK, on

pytest.importorskip("keras", reason="Keras is not installed")

STEPS, CUT = 9, 6  # the cut is between two exchanges
SPECS = ("diloco:4,momentum=0.5", "easgd:4", "ps:1,optimizer=adam,lr=0.01")


def trained(spec: str, steps: int, folder: Path | None = None) -> list[Any]:
    """Return each rank's weights after all steps up to ``steps``."""

    def body(rank: int) -> Any:
        import keras

        import farandole.keras as hvd

        layer = keras.layers.Dense(1, kernel_initializer="zeros")
        model = keras.Sequential([keras.layers.InputLayer((5,)), layer])
        inner = keras.optimizers.Adam(0.05)
        model.compile(optimizer=hvd.DistributedOptimizer(inner, strategy=spec), loss="mse")

        @hvd.elastic.run
        def train(state: Any) -> None:
            while state.step < steps:
                random = np.random.default_rng(1000 * state.step + rank)
                x = random.standard_normal((8, 5)).astype(np.float32)
                model.train_on_batch(x, x[:, :1] ** 2)
                state.step += 1
                state.commit()

        train(hvd.elastic.KerasState(model, step=0))
        return [each.tolist() for each in model.get_weights()]

    path = "" if folder is None else str(folder)
    return on(QUICK, 2, body, store=True, commit_dir=path, commit_dir_seconds=1000.0)


@pytest.mark.parametrize("spec", SPECS)
def test_a_job_that_is_started_again_continues_exactly(spec: str, tmp_path: Path) -> None:
    expected = trained(spec, STEPS)
    trained(spec, CUT, tmp_path)
    assert trained(spec, STEPS, tmp_path) == expected
