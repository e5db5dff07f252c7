"""Ranks that train different models with TensorFlow, or read the same data, are reported; others
are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from tests.kits.heard import heard
from tests.kits.messages import mentions

v1 = tf.compat.v1


def fresh(seed: int, model: str) -> list[Any]:
    random = np.random.default_rng(seed)
    return [
        tf.Variable(random.normal(size=shape).astype(np.float32), name=f"{model}/{name}")
        for name, shape in (("kernel", (6, 3)), ("bias", (3,)))
    ]


def train(
    rank: int,
    variables: list[Any],
    steps: int,
    *,
    function: bool = False,
    own_data: bool = True,
    before: Callable[[int], Any] = lambda step: None,
) -> None:
    kernel, bias = variables

    def take(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ kernel + bias) - y) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)

    step_of = tf.function(take, autograph=False) if function else take
    for step in range(1, steps + 1):
        before(step)
        random = np.random.default_rng(100 * step + rank * own_data)
        step_of(*(tf.constant(random.normal(size=(4, n)).astype(np.float32)) for n in (6, 3)))


def alike(rank: int, model: str) -> list[Any]:
    variables = fresh(rank, model)
    hvd.broadcast_variables(variables, root_rank=0)
    return variables


@pytest.mark.parametrize("function", [False, True])
def test_tapes(function: bool) -> None:
    def no_broadcast(rank: int) -> None:
        train(rank, fresh(rank, "a"), 2, function=function)

    def late_load(rank: int) -> None:
        variables = alike(rank, "b")
        train(
            rank,
            variables,
            9,
            function=function,
            before=lambda step: (
                variables[1].assign_add([1.0] * 3) if (rank, step) == (0, 6) else None
            ),
        )

    def same_data(rank: int) -> None:
        train(rank, alike(rank, "c"), 2, function=function, own_data=False)

    def broadcast_after_the_first_step(rank: int) -> None:
        """As in Horovod's examples, because the first step creates the optimizer's variables."""
        variables = fresh(rank, "d")
        train(
            rank,
            variables,
            9,
            function=function,
            before=lambda step: (
                hvd.broadcast_variables(variables, root_rank=0) if step == 2 else None
            ),
        )

    def well(rank: int) -> None:
        train(rank, alike(rank, "e"), 9, function=function)

    programs = no_broadcast, late_load, same_data, broadcast_after_the_first_step, well
    (start, drift, data, *others), other = heard(2, *programs)
    assert others == [[], []]
    assert other == [[]] * len(programs)
    assert [len(texts) for texts in (start, drift, data)] == [1, 1, 1], (start, drift, data)
    assert mentions(start[0], "different weights")
    assert "in 2 of 2 parameters, first in a/kernel" in start[0]
    assert mentions(drift[0], "1", "2", "b/bias", "step 4", "step 8")
    assert "learning rate" in drift[0]  # a tape knows of none
    assert mentions(data[0], "gradients")


def test_variables_keep_still_while_they_are_compared() -> None:
    """Rows of a table are exchanged separately: they must not change the table while dense
    gradients are in transit, and weights must not decay then.
    """

    def program(rank: int) -> None:
        table, bias = tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([2]))

        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, [rank, 1]) + bias)
            bias.assign_sub(0.1 * bias)
            rows, dense = hvd.DistributedGradientTape(tape).gradient(loss, [table, bias])
            table.assign_add(tf.zeros([5, 2]))
            table.scatter_sub(rows)
            bias.assign_sub(dense)

        made = tf.function(step, autograph=False).get_concrete_function().graph.get_operations()
        begin, end = (
            next(op for op in made if "exchange_of" in op.name and op.type == kind)
            for kind in ("EagerPyFunc", "PyFunc")
        )
        writes = [
            op
            for op in made
            if op.type in ("AssignSubVariableOp", "AssignAddVariableOp", "ResourceScatterSub")
        ]
        assert [op.type[:9] for op in writes] == [
            "AssignSub",
            "AssignAdd",
            "ResourceS",
            "AssignSub",
        ]
        assert writes[0] in before(begin)
        assert [end in before(op) for op in writes] == [False, True, True, True]

    heard(2, program)


def before(operation: Any) -> set[Any]:
    """Return the operations that an operation waits for."""
    found, left = set(), [operation]
    while left:
        for one in (*left[-1].control_inputs, *(tensor.op for tensor in left.pop().inputs)):
            if one not in found:
                found.add(one)
                left.append(one)
    return found


def fit(rank: int, wrapped: bool) -> None:
    import tf_keras

    from farandole.keras import tf_keras as hvd_keras

    tf_keras.utils.set_random_seed(0)
    model = tf_keras.Sequential([tf_keras.layers.Dense(3, input_shape=(6,))])
    optimizer = tf_keras.optimizers.SGD(0.1)
    model.compile(hvd_keras.DistributedOptimizer(optimizer) if wrapped else optimizer, "mse")
    random = np.random.default_rng(rank)
    callbacks = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
    ]
    data = random.normal(size=(16, 6)), random.normal(size=(16, 3))
    model.fit(*data, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)


def test_an_epoch_of_keras_2_without_an_exchange() -> None:
    (first, again), _ = heard(2, lambda rank: fit(rank, False), lambda rank: fit(rank, False))
    [text] = first
    assert mentions(text, "model.fit", "SGD", "2")
    assert again == []
    assert heard(2, lambda rank: fit(rank, True)) == [[[]], [[]]]


@pytest.mark.parametrize("trains", [False, True])
def test_the_end_of_jobs_that_predict_or_train_apart(trains: bool) -> None:
    def program(rank: int) -> None:
        from farandole.job import context

        kernel, bias = alike(rank, "model")
        hvd.allreduce(tf.reduce_mean(tf.ones([4, 6]) @ kernel + bias), name="prediction")
        if trains:
            bias.assign_add([0.1] * 3)
        context.shutdown()

    [first], other = heard(2, program)
    assert [mentions(text, "2", "21") for text in first] == [True] * trains
    assert other == [[]]


def test_settings_of_optimizers_and_sessions() -> None:
    def keras_2(rank: int) -> None:
        import tf_keras

        tf_keras.utils.set_random_seed(0)
        model = tf_keras.Sequential([tf_keras.layers.Dense(3, input_shape=(6,))])
        optimizer = tf_keras.optimizers.SGD(0.1 / (1 + rank))
        from farandole.keras import tf_keras as hvd_keras

        model.compile(hvd_keras.DistributedOptimizer(optimizer), "mse")
        random = np.random.default_rng(rank)
        model.fit(random.normal(size=(16, 6)), random.normal(size=(16, 3)), batch_size=4, verbose=0)

    def session(rank: int) -> None:
        with tf.Graph().as_default(), v1.Session() as session:
            kernel = v1.get_variable("kernel", initializer=np.ones((6, 3), np.float32))
            x = v1.placeholder(tf.float32, (4, 6))
            optimizer = hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(0.1 * (1 + rank))
            )
            step = optimizer.minimize(tf.reduce_mean(tf.tanh(x @ kernel)))
            session.run(v1.global_variables_initializer())
            for number in range(2):
                session.run(
                    step, {x: np.random.default_rng(10 * number + rank).normal(size=(4, 6))}
                )

    (first, second), _ = heard(2, keras_2, session)
    assert "learning_rate is 0.1" in first[0]
    assert "0.05" in first[0]
    assert "learning_rate is 0.1 on rank 0, 0.2 on rank 1" in second[0]
    assert len(first) == len(second) == 1
