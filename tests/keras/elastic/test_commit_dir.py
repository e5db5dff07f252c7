"""Training with strategies that continues from the folder of an earlier job, with Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.core.api import elastic
from tests.keras.backends import QUICK, on
from tests.run_job import job

pytest.importorskip("keras", reason="Keras is not installed")
pytestmark = pytest.mark.slow

STEPS, CUT = 9, 6  # the cut is between two exchanges
SPECS = ("diloco:4,momentum=0.5", "easgd:4", "ps:1,optimizer=adam,lr=0.01")


def trained(version: int, spec: str, steps: int, folder: Path | None = None) -> list[Any]:
    """Return each rank's weights after all steps up to ``steps``, with this version of Keras."""

    def body(rank: int) -> Any:
        hvd: Any
        keras: Any
        if version == 2:
            import tf_keras as keras

            import farandole.tensorflow as hvd
            from farandole.keras.tf_keras.elastic import KerasState
        else:
            import keras

            import farandole.keras as hvd
            from farandole.keras.elastic import KerasState

        layer = keras.layers.Dense(1, kernel_initializer="zeros")
        model = keras.Sequential([keras.layers.InputLayer((5,)), layer])
        inner = keras.optimizers.Adam(0.05)
        model.compile(optimizer=hvd.DistributedOptimizer(inner, strategy=spec), loss="mse")

        @elastic.run
        def train(state: Any) -> None:
            while state.step < steps:
                random = np.random.default_rng(1000 * state.step + rank)
                x = random.standard_normal((8, 5)).astype(np.float32)
                model.train_on_batch(x, x[:, :1] ** 2)
                state.step += 1
                state.commit()

        train(KerasState(model, step=0))
        return [each.tolist() for each in model.get_weights()]

    path = "" if folder is None else str(folder)
    settings = {"store": True, "commit_dir": path, "commit_dir_seconds": 1000.0}
    return job(2, body, **settings) if version == 2 else on(QUICK, 2, body, **settings)


@pytest.mark.parametrize(
    ("version", "spec"), [(3, SPECS[0]), (3, SPECS[1]), (3, SPECS[2]), (2, SPECS[0])]
)
def test_a_job_that_is_started_again_continues_exactly(
    version: int, spec: str, tmp_path: Path
) -> None:
    if version == 2:
        pytest.importorskip("tf_keras", reason="Keras 2 is not installed")
    expected = trained(version, spec, STEPS)
    trained(version, spec, CUT, tmp_path)
    assert trained(version, spec, STEPS, tmp_path) == expected
