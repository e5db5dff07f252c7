"""``model.fit`` in an elastic job, with a program that knows nothing of it: a rank is lost, another
joins, and each epoch is complete.
"""

from __future__ import annotations

import pytest

import farandole
from tests.keras.elastic.training import (
    BATCH,
    EPOCHS,
    ROWS,
    STEPS,
    Done,
    check,
    check_ranks,
    faults_of,
)

pytestmark = pytest.mark.slow


def trained() -> Done:
    import os

    import keras
    import numpy as np

    import farandole.keras as hvd

    hvd.init()
    traced = []

    class Total(keras.losses.Loss):  # type: ignore[misc]
        def call(self, y_true: object, y_pred: object) -> object:
            traced.append(1)
            return y_pred

    model = keras.Sequential([keras.Input([ROWS]), keras.layers.Dense(1, use_bias=False)])
    model.layers[0].kernel.assign(np.zeros((ROWS, 1)))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum, shard=True)
    model.compile(optimizer, Total(reduction="sum"))
    faults = faults_of(keras.callbacks.Callback, hvd)
    stopping = keras.callbacks.EarlyStopping("loss", patience=20, mode="max")
    after_first: list[int] = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: after_first.append(len(traced))
    )
    history = model.fit(
        np.eye(ROWS, dtype="float32"),
        np.zeros((ROWS, 1), "float32"),
        batch_size=BATCH,
        epochs=EPOCHS,
        callbacks=[stopping, faults, note],
        verbose=0,
    )
    eager = keras.backend.backend() == "torch"
    return Done(
        int(os.environ["FARANDOLE_MEMBER"]),
        hvd.size(),
        (-model.get_weights()[0].reshape(-1)).round(3).tolist(),
        history.history,
        history.epoch,
        {"wait": stopping.wait, "best": float(stopping.best)},
        faults.begun,
        faults.sizes,
        0 if eager else after_first[-1] - after_first[0],
        faults.steps,
    )


def trained_with_keras_2() -> Done:
    import os

    import numpy as np
    import tf_keras as keras

    import farandole.keras.tf_keras as hvd

    hvd.init()
    traced = []

    def total(y_true: object, y_pred: object) -> object:
        traced.append(1)
        return y_pred

    model = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    model.compile(optimizer, total)
    faults = faults_of(keras.callbacks.Callback, hvd)
    stopping = keras.callbacks.EarlyStopping("loss", patience=20, mode="max")
    after_first: list[int] = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: after_first.append(len(traced))
    )
    begin = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    history = model.fit(
        np.ones((STEPS, ROWS), "float32"),
        np.zeros((STEPS, 1), "float32"),
        batch_size=BATCH,
        epochs=EPOCHS,
        callbacks=[begin, hvd.callbacks.MetricAverageCallback(), stopping, faults, note],
        verbose=0,
    )
    return Done(
        int(os.environ["FARANDOLE_MEMBER"]),
        hvd.size(),
        model.get_weights()[0].reshape(-1).tolist(),
        history.history,
        history.epoch,
        {"wait": stopping.wait, "best": float(stopping.best)},
        faults.begun,
        faults.sizes,
        after_first[-1] - after_first[0],
        faults.steps,
    )


def test_fit_continues(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    check(farandole.run(trained, np=3, min_np=2, max_np=3))


def test_fit_of_keras_2_continues() -> None:
    """With data that the program divides itself, or does not divide: every step counts once."""
    pytest.importorskip("tf_keras", reason="Keras 2 is not installed")
    results = farandole.run(trained_with_keras_2, np=3, min_np=2, max_np=3)
    check_ranks(results)
    falls = results[0].seen
    assert max(falls) - min(falls) <= 2 + 1e-3  # uniform initial weights
    assert sum(falls) / ROWS == pytest.approx(-STEPS * EPOCHS, abs=0.2)
