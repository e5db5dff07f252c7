"""TensorFlow's gradients through codecs, in functions and outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import farandole.tensorflow as hvd
from tests.run_job import job


def test_votes_and_residuals_from_tape_to_tape() -> None:
    def fn(rank: int) -> list[Any]:
        variable = tf.Variable(np.zeros(5, np.float32))

        def gradient(values: Any, **options: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * values)
            return hvd.DistributedGradientTape(tape, **options).gradient(loss, [variable])[0]

        mine = tf.constant([1.0, -2.0, 3.0, rank - 1.0, 0.0])
        for call in (gradient, tf.function(gradient)):
            for options in ({"codec": "sign"}, {}):
                assert np.array_equal(call(mine, **options), [1, -1, 1, 0, 0])
        for call in (gradient, tf.function(gradient)):
            # momentum: 2, 0.5, -4.25 times mine
            votes = [
                call(factor * mine, codec="sign:0.5").numpy().tolist()
                for factor in (4.0, -1.0, -9.0)
            ]
            assert votes == [[1, -1, 1, 0, 0], [1, -1, 1, 0, 0], [-1, 1, -1, 0, 0]]
        topk = [gradient(mine, codec="topk:0.2").numpy() for _ in range(3)]
        assert np.count_nonzero(topk[0]) == 1  # the third everywhere
        assert topk[1][1] == -4  # which has waited
        twin = tf.Variable(np.zeros(5, np.float32))  # its gradients are zeros: nothing waits

        def update_of(variable: Any) -> Any:
            def update(values: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(variable * values)
                return hvd.DistributedGradientTape(tape, codec="topk:0.4").gradient(
                    loss, [variable]
                )[0]

            return update

        for how in (lambda function: function, tf.function):
            one, other = how(update_of(variable)), how(update_of(twin))
            for _ in range(2):
                assert np.any(one(mine))
                assert not np.any(other(tf.zeros(5)))
        return topk

    first, *others = job(3, fn, codec="sign")
    assert all(np.array_equal(first, other) for other in others)


def test_a_codec_replaces_the_momentum_of_old_optimizers() -> None:
    """With equal gradients of 1 and -1, which onebit sends exactly, steps grow to half of the
    momentum's sum: see ``codecs.momentum``.
    """

    def fn(rank: int) -> None:
        import tf_keras

        given = np.array([1.0, -1.0, 1.0], np.float32)
        moved = sum(min((1 - 0.9 ** (step + 1)) / 0.1, 5) for step in range(10))
        for nesterov in (False, True):
            old = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=nesterov)
            keras_2 = tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9, nesterov=nesterov)
            new = tf_keras.optimizers.SGD(0.1, momentum=0.9, nesterov=nesterov)
            for plain in (old, keras_2, new):
                optimizer = hvd.DistributedOptimizer(plain, codec="onebit")
                variable = tf.Variable(np.zeros(3, np.float32))
                for _ in range(10):
                    if plain is old:
                        optimizer.minimize(lambda v=variable: tf.reduce_sum(v * given))
                    else:
                        optimizer.minimize(lambda v=variable: tf.reduce_sum(v * given), [variable])
                assert np.allclose(variable, -0.1 * moved * given, rtol=1e-5), type(plain)

    job(2, fn)
