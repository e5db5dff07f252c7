"""Models of Keras 2, their data, and their training on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("tf_keras", reason="tf_keras is not installed")

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "old momentum": lambda optimizers: optimizers.legacy.SGD(0.3, momentum=0.9),
    "adam": lambda optimizers: optimizers.Adam(0.05),
}
BATCH, STEPS = 8, 6


def make(rank: int) -> Any:
    """Return an embedding and a layer, with different weights on each rank."""
    import tf_keras

    tf_keras.utils.set_random_seed(rank)
    layers = [
        tf_keras.layers.Embedding(11, 4, input_length=3),
        tf_keras.layers.Flatten(),
        tf_keras.layers.Dense(2),
    ]
    return tf_keras.Sequential(layers)


def data(rank: int, size: int) -> tuple[Any, Any]:
    """Return the rank's part of each batch."""
    random = np.random.default_rng(1)
    words, targets = (
        random.integers(0, 11, (STEPS, BATCH, 3)),
        random.normal(size=(STEPS, BATCH, 2)),
    )
    part = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    return words[:, part].reshape(-1, 3), targets[:, part].reshape(-1, 2).astype(np.float32)


def gan(optimizers: list[Any]) -> Any:
    """Return a model that steps its first optimizer in each batch, and its second in every second
    one.
    """
    import tf_keras

    class Gan(tf_keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            tf_keras.utils.set_random_seed(2)
            self.parts = [
                tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(1,))]) for _ in range(2)
            ]
            self.first, self.others = optimizers[0], {"second": optimizers[1]}
            self.batch = 0

        def train_step(self, data: Any) -> Any:
            self.batch += 1
            for part, optimizer in zip(
                self.parts, [self.first, self.others["second"]], strict=True
            ):
                if optimizer is self.first or self.batch % 2 == 0:
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean(part(data[0]) ** 2)
                    weights = part.trainable_weights
                    optimizer.apply_gradients(
                        zip(tape.gradient(loss, weights), weights, strict=True)
                    )
            return {"loss": loss}

    model = Gan()
    model.compile(run_eagerly=True)
    return model
