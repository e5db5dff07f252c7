"""The metrics of ``fit`` in a run."""

from __future__ import annotations

from pathlib import Path

import pytest

import farandole
from farandole.job.runs.folder import RUN_VARIABLE, RunFolder
from farandole.job.runs.journal import records
from tests.keras.backends import QUICK


def train_with_keras_3() -> None:
    import keras
    import numpy as np

    import farandole.keras as hvd

    hvd.init()
    x, y = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", metrics=["mae"])
    model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    model.fit(
        x,
        y,
        batch_size=4,
        epochs=5,
        initial_epoch=4,
        verbose=0,
        callbacks=[hvd.callbacks.TrackingCallback(every=2)],
    )


def train_with_keras_2() -> None:
    import numpy as np
    import tf_keras

    import farandole.keras.tf_keras as hvd

    hvd.init()
    x, y = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)
    model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.01)), "mse")
    callbacks = [hvd.callbacks.TrackingCallback(every=2)]
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)


def kept(run: RunFolder, rank: int) -> list[tuple[int, set[str]]]:
    found = records(run.metrics_of(rank))
    return [(each["step"], set(each["values"])) for each in found if "kind" not in each]


@pytest.mark.slow
def test_the_metrics_of_each_epoch_are_recorded(tmp_path: Path) -> None:
    run = RunFolder(str(tmp_path / "e_1_00000000"))
    env = {RUN_VARIABLE: run.path, "KERAS_BACKEND": QUICK}
    farandole.run(train_with_keras_3, np=2, env=env)
    for rank in (0, 1):
        assert kept(run, rank) == [
            (0, {"loss", "mae"}),
            (1, {"loss", "mae"}),
            (2, {"batch/loss", "batch/mae"}),
            (4, {"loss", "mae"}),
        ]


@pytest.mark.slow
def test_the_metrics_of_keras_2_are_recorded(tmp_path: Path) -> None:
    pytest.importorskip("tf_keras", reason="Keras 2 is not installed")
    run = RunFolder(str(tmp_path / "e_1_00000000"))
    farandole.run(train_with_keras_2, np=2, env={RUN_VARIABLE: run.path})
    assert kept(run, 0) == [
        (2, {"batch/loss"}),
        (0, {"loss"}),
        (4, {"batch/loss"}),
        (1, {"loss"}),
    ]
