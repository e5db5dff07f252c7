"""Parts of the jobs of these tests, imported by the processes of a job, which have Keras."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np


def data(rows: int = 32, features: int = 6, classes: int = 3, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, features)).astype("float32")
    y = (x @ random.normal(size=(features, classes))).argmax(axis=1).astype("int32")
    return x, y


def dense(seed: int, features: int = 6, classes: int = 3) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((features,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(classes),
        ]
    )


def embedding(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(10, 5),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )


def loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def weights(model: Any) -> list[Any]:
    return [np.asarray(each) for each in model.get_weights()]


@contextmanager
def said() -> Iterator[list[str]]:
    """Yield the messages of Farandole's log."""
    from farandole.checks import reporting

    reporting._logged_once.clear()
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger, handler = logging.getLogger("farandole"), Keep()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def words(rows: int = 32, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    x = random.integers(0, 10, size=(rows, 4)).astype("int32")
    return x, (x.sum(axis=1) % 3).astype("int32")


def own_step(backend: str, *, called: bool = True) -> Any:
    """Return a class of models with a custom ``train_step``, around another model. Not ``called``
    (TensorFlow): it has no ``call``, like a GAN.
    """
    if backend == "jax":
        return _on_jax()
    return _on_torch() if backend == "torch" else _on_tensorflow(called)


def _on_jax() -> Any:
    import jax

    class Own(keras.Model):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def call(self, x: Any, training: bool = False) -> Any:
            return self.inner(x, training=training)

        def train_step(self, state: Any, data: Any) -> Any:
            trainable, rest, variables, metrics = state
            x, y = data[0], data[1]

            def of(trainable: Any) -> Any:
                prediction, _ = self.stateless_call(trainable, rest, x, training=True)
                return loss()(y, prediction)

            value, grads = jax.value_and_grad(of)(trainable)
            trainable, variables = self.optimizer.stateless_apply(variables, grads, trainable)
            return {"own": value}, (trainable, rest, variables, metrics)

    return Own


def _on_tensorflow(called: bool) -> Any:
    import tensorflow as tf

    class Own(keras.Model):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        if called:

            def call(self, x: Any, training: bool = False) -> Any:
                return self.inner(x, training=training)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                value = loss()(y, (self if called else self.inner)(x, training=True))
            grads = tape.gradient(value, self.trainable_variables)
            optimizer = getattr(self, "held", self.optimizer)
            optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
            return {"own": value}

    return Own


def _on_torch() -> Any:
    import torch

    class Own(keras.Model):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def call(self, x: Any, training: bool = False) -> Any:
            return self.inner(x, training=training)

        def train_step(self, data: Any) -> Any:
            x, y = data
            self.zero_grad()
            value = loss()(y, self(x, training=True))
            value.backward()
            variables = self.trainable_weights[:]
            with torch.no_grad():
                self.optimizer.apply([each.value.grad for each in variables], variables)
            return {"own": value}

    return Own
