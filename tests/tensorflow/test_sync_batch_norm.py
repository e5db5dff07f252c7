"""SyncBatchNormalization on two ranks equals Keras's layer on the batches of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from tests.kits.messages import mentioning
from tests.run_job import job


@pytest.mark.parametrize("shape", [(7, 3), (7, 4, 5, 3)])
@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize("keras", [2, 3])
def test_two_ranks_normalize_as_one(shape: tuple[int, ...], function: bool, keras: int) -> None:
    if keras == 2:
        pytest.importorskip("tf_keras", reason="tf_keras is not installed")

    def body(rank: int) -> None:
        random = np.random.default_rng(3)
        every = random.normal(2.0, 3.0, shape).astype(np.float32)
        weights = random.normal(size=shape).astype(np.float32)
        mine = slice(0, 2) if rank == 0 else slice(2, None)  # batches of different sizes

        def results(layer: Any, x: Any, weight: Any) -> Any:
            layer.build(x.shape)
            scale, shift = (
                each.value if keras == 3 else each for each in (layer.gamma, layer.beta)
            )

            def step(x: Any) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = layer(x, training=True)
                    loss = tf.reduce_sum(y * weight)
                return [y, *tape.gradient(loss, [x, scale, shift])]

            found = (tf.function(step, autograph=False) if function else step)(tf.constant(x))
            return (
                [each.numpy() for each in found],
                np.asarray(layer.moving_mean),
                np.asarray(layer.moving_variance),
            )

        if keras == 2:
            from tf_keras.layers import BatchNormalization

            from farandole.keras.tf_keras import SyncBatchNormalization
        else:
            from tensorflow.keras.layers import BatchNormalization

            from farandole.tensorflow import SyncBatchNormalization
        plain = BatchNormalization(momentum=0.5, **({"fused": False} if keras == 2 else {}))
        (y, of_x, gamma, beta), mean, variance = results(plain, every, weights)
        one, one_mean, one_variance = results(
            SyncBatchNormalization(momentum=0.5), every[mine], weights[mine]
        )
        near = {"rtol": 2e-4, "atol": 2e-5}
        np.testing.assert_allclose(one[0], y[mine], **near)
        np.testing.assert_allclose(one[1], of_x[mine], **near)
        both = [hvd.allreduce(each, op=hvd.Sum).numpy() for each in one[2:]]
        np.testing.assert_allclose(both[0], gamma, **near)
        np.testing.assert_allclose(both[1], beta, **near)
        np.testing.assert_allclose(one_mean, mean, **near)
        np.testing.assert_allclose(one_variance, variance, **near)

    job(2, body)


def test_masks_sets_and_what_is_refused() -> None:
    def body(rank: int) -> None:
        x = np.arange(24.0, dtype=np.float32).reshape(4, 3, 2)
        mask = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]], bool)
        mine = slice(2 * rank, 2 * rank + 2)
        layer = hvd.SyncBatchNormalization(momentum=0.0)
        layer(tf.constant(x[mine]), mask=tf.constant(mask[mine]), training=True)
        np.testing.assert_allclose(np.asarray(layer.moving_mean), x[mask].mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(
            np.asarray(layer.moving_variance), x[mask].var(axis=0), rtol=1e-5
        )
        first = hvd.add_process_set([0])
        if rank == 0:
            plain = tf.keras.layers.BatchNormalization(momentum=0.0)
            alone = hvd.SyncBatchNormalization(momentum=0.0, process_set=first)
            for each in (plain, alone):
                each(tf.constant(x[mine]), training=True)
            np.testing.assert_array_equal(
                np.asarray(alone.moving_mean), np.asarray(plain.moving_mean)
            )
        with pytest.raises(ValueError, match=mentioning("fused=True")):
            hvd.SyncBatchNormalization(fused=True)
        again = hvd.SyncBatchNormalization.from_config(layer.get_config())
        assert isinstance(again, tf.keras.layers.BatchNormalization)

    job(2, body, dynamic_process_sets=True)


def test_a_model_with_it_is_not_compiled_by_xla() -> None:
    def body(rank: int) -> Any:
        for _ in range(rank):  # the names that Keras gives are other ones then
            hvd.SyncBatchNormalization()
        layers = [
            tf.keras.layers.Dense(3),
            hvd.SyncBatchNormalization(),
            hvd.SyncBatchNormalization(),
        ]
        model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
        x = np.random.default_rng(rank).normal(size=(8, 2)).astype(np.float32)
        model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0)
        return [np.asarray(each) for each in model.trainable_weights]

    first, second = job(2, body)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
