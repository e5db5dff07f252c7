"""Replicas of a Keras state: trained weights, and the variables of optimizers."""

from __future__ import annotations

import pytest

from tests.keras.backends import QUICK, on
from tests.kits.replicas import check_state
from tests.run_job import job


def _keras_3(_: int) -> int:
    import keras
    import numpy as np

    import farandole.keras as hvd

    model = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.BatchNormalization()]
    )
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    model.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))
    state = hvd.elastic.KerasState(model, epoch=1)
    check_state(state, ["kernel", "gamma", "momentum"])
    assert not [name for name in state.replicas() if "moving" in name]
    count = len(state.replicas())
    layer = model.layers[0]
    model.compile(
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=layer), "mse"
    )
    model.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))
    names = hvd.elastic.KerasState(model).replicas()
    assert [each.path for each in names.values()] == [
        each.path for each in model.layers[1].trainable_weights
    ]
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), strategy="local_sgd:4"), "mse"
    )
    assert not hvd.elastic.KerasState(model).replicas()
    return count


def test_weights_and_states_of_optimizers_are_repaired() -> None:
    assert on(QUICK, 1, _keras_3) == [14]


def _keras_2(_: int) -> None:
    import numpy as np
    import tf_keras

    import farandole.keras.tf_keras as hvd

    model = tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(3,))])
    model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.Adam(0.1)), "mse")
    model.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))
    check_state(hvd.elastic.KerasState(model, epoch=1), ["kernel", "m/", "v/"])


def test_keras_2() -> None:
    pytest.importorskip("tf_keras", reason="Keras 2 is not installed")
    job(1, _keras_2)
