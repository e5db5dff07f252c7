"""An estimator for Keras, and the plain loop for comparison."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from farandole.estimators import KerasEstimator
from tests.estimators.tools import Pool
from tests.keras.backends import QUICK

RATE, BATCH, EPOCHS = 0.1, 8, 3


def net(package: Any = keras) -> Any:
    package.utils.set_random_seed(3)
    layers = package.layers
    return package.Sequential(
        [layers.Input((3,)), layers.Dense(4, activation="tanh"), layers.Dense(1)]
    )


def estimator(model: Any = None, **params: Any) -> KerasEstimator:
    given: dict[str, Any] = {
        "model": net() if model is None else model,
        "optimizer": keras.optimizers.SGD(RATE, momentum=0.9),
        "loss": "mse",
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "random_seed": 5,
        "scale_lr": False,
        "verbose": 0,
        "backend": Pool(1, QUICK),
    }
    if "num_proc" in params:
        del given["backend"]
    return KerasEstimator(**{**given, **params})


def plain(data: Any, package: Any = keras, rate: float = RATE) -> Any:
    """Train in a plain loop on one process; return the model, and the loss of each epoch."""
    model, losses = net(package), []
    model.compile(package.optimizers.SGD(rate, momentum=0.9), "mse")
    reader = data.numpy(BATCH, seed=5, rank=0, size=1)
    for _ in range(EPOCHS):
        total = 0.0
        for rows in reader:
            model.reset_metrics()
            loss = model.train_on_batch(rows["x"].astype("float32"), rows["y"].astype("float32"))
            total += float(np.ravel(loss)[0]) * len(rows["y"])
        losses.append(total / data.rows)
    return model, losses


def weights(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(each) for each in model.get_weights()])
