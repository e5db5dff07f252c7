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
