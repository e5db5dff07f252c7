"""Training on two ranks equals training on one: tapes, functions, sessions; dense gradients and
embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from tests.kits.messages import mentioning
from tests.run_job import job

STEPS, BATCH, WORDS = 4, 8, 11
v1 = tf.compat.v1


def data(rank: int, size: int) -> list[tuple[Any, Any]]:
    """Return each step's batch, or a rank's part of it."""
    random = np.random.default_rng(1)
    words = random.integers(0, WORDS, (STEPS, BATCH, 3))
    targets = random.normal(size=(STEPS, BATCH, 2)).astype(np.float32)
    part = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    return [(words[step][part], targets[step][part]) for step in range(STEPS)]


def fresh(rank: int) -> list[Any]:
    """Return an embedding, weights and biases that differ between ranks."""
    random = np.random.default_rng(5 + rank)
    shapes = [(WORDS, 4), (4, 2), (2,)]
    return [
        tf.Variable(random.normal(size=shape).astype(np.float32), name=f"w{n}")
        for n, shape in enumerate(shapes)
    ]


def loss_of(variables: list[Any], words: Any, targets: Any) -> Any:
    table, weights, biases = variables
    hidden = tf.reduce_mean(tf.nn.embedding_lookup(table, words), axis=1)
    return tf.reduce_mean((tf.tanh(hidden) @ weights + biases - targets) ** 2)


KERAS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: tf.keras.optimizers.SGD(0.5),
    "momentum": lambda: tf.keras.optimizers.SGD(0.3, momentum=0.9),
    "adam": lambda: tf.keras.optimizers.Adam(0.05),
}
V1: dict[str, Callable[[], Any]] = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.5),
    "momentum": lambda: v1.train.MomentumOptimizer(0.3, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.05),
}


def as_dense(gradients: Any) -> list[Any]:
    """Convert to dense: optimizers with momentum skip the rows that a sparse gradient lacks."""
    return [tf.convert_to_tensor(each) for each in gradients]


def tape_steps(rank: int, size: int, name: str, function: bool, **options: Any) -> list[list[Any]]:
    """Return the weights after each step, trained with a tape; alone if ``size`` is 1."""
    variables, optimizer = fresh(rank), KERAS[name]()

    def step(words: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(variables, words, targets)
        if size > 1:
            tape = hvd.DistributedGradientTape(tape, **options)
        gradients = tape.gradient(loss, variables)
        if size == 1 and options:
            gradients = as_dense(gradients)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    optimizer.build(variables)
    if size > 1:
        hvd.broadcast_variables(variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)
    run = tf.function(step, autograph=False) if function else step
    history = []
    for words, targets in data(rank, size):
        run(tf.constant(words), tf.constant(targets))
        history.append([each.numpy() for each in variables])
    return history


def session_steps(rank: int, size: int, name: str, **options: Any) -> list[list[Any]]:
    """Like ``tape_steps``, with an optimizer of TensorFlow 1 in a session."""
    with tf.Graph().as_default():
        variables, optimizer = fresh(rank), V1[name]()
        if size > 1:
            optimizer = hvd.DistributedOptimizer(optimizer, **options)
        words, targets = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None, 2])
        pairs = optimizer.compute_gradients(loss_of(variables, words, targets), variables)
        if size == 1 and options:
            pairs = zip(as_dense([gradient for gradient, _ in pairs]), variables, strict=True)
        train = optimizer.apply_gradients(pairs)
        history = []
        begin = hvd.broadcast_global_variables(0) if size > 1 else tf.no_op()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(begin)
            for one, other in data(rank, size):
                session.run(train, {words: one, targets: other})
                history.append(session.run(variables))
    return history


def same(first: Any, second: Any, **tolerance: float) -> None:
    for one, other in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


@pytest.mark.parametrize("name", list(KERAS))
def test_two_ranks_train_as_one(name: str) -> None:
    def body(rank: int) -> Any:
        dense = {"sparse_as_dense": True}
        tape, tape_dense = tape_steps(0, 1, name, False), tape_steps(0, 1, name, False, **dense)
        session, session_dense = session_steps(0, 1, name), session_steps(0, 1, name, **dense)
        ways = {
            "eager": (tape_steps(rank, 2, name, False), tape),
            "function": (tape_steps(rank, 2, name, True), tape),
            "as dense": (tape_steps(rank, 2, name, True, **dense), tape_dense),
            "session": (session_steps(rank, 2, name), session),
            "session, as dense": (session_steps(rank, 2, name, **dense), session_dense),
        }
        for history, reference in ways.values():
            same(history, reference, rtol=2e-4, atol=2e-6)
        return [history for history, _ in ways.values()]

    first, second = job(2, body)
    same(first, second, rtol=0, atol=0)


def test_four_ranks_train_as_one() -> None:
    def body(rank: int) -> Any:
        history = tape_steps(rank, 4, "momentum", True), session_steps(rank, 4, "momentum")
        same(history[0], tape_steps(0, 1, "momentum", True), rtol=2e-4, atol=2e-6)
        same(history[1], session_steps(0, 1, "momentum"), rtol=2e-4, atol=2e-6)
        return history

    first, *others = job(4, body)
    for other in others:
        same(first, other, rtol=0, atol=0)


def test_options_of_tapes() -> None:
    def body(rank: int) -> Any:
        x = [tf.Variable([1.0, 2.0]), tf.Variable(3.0)]

        def gradient(
            make: Any = hvd.DistributedGradientTape, local: bool = False, **options: Any
        ) -> Any:
            with tf.GradientTape() as inner:
                loss = (rank + 1.0) * (tf.reduce_sum(x[0] ** 2) + x[1])
            tape = make(inner, **options)
            assert isinstance(tape, tf.GradientTape)
            if local:
                tape.register_local_source(x[1])
            return [each.numpy().tolist() for each in tape.gradient(loss, x)]

        assert gradient() == [[3.0, 6.0], 1.5]
        assert gradient(op=hvd.Sum) == [[6.0, 12.0], 3.0]
        assert gradient(gradient_predivide_factor=2.0) == [[3.0, 6.0], 1.5]
        assert gradient(compression=hvd.Compression.fp16) == [[3.0, 6.0], 1.5]
        assert gradient(compression=hvd.Compression.bf16, groups=2) == [[3.0, 6.0], 1.5]
        assert gradient(local=True) == [[3.0, 6.0], (rank + 1) / 2]
        assert gradient(local=True, scale_local_gradients=False) == [[3.0, 6.0], rank + 1.0]
        # parallel gradients: the average of what each would do alone
        adasum = gradient(op=hvd.Adasum)
        assert 2.0 <= adasum[0][0] <= 4.0
        alone = hvd.ProcessSet([0])
        hvd.add_process_set(alone)
        assert gradient(process_set=alone) == [[2.0 * (rank + 1), 4.0 * (rank + 1)], rank + 1.0]
        for process_set in (alone, hvd.global_process_set):  # on any number of ranks
            with tf.GradientTape() as inner:
                rows = tf.reduce_sum(tf.gather(x[0], [1, 1]))
            tape = hvd.DistributedGradientTape(inner, sparse_as_dense=True, process_set=process_set)
            found = tape.gradient(rows, x[0])
            assert tf.is_tensor(found)
            assert not isinstance(found, tf.IndexedSlices)
            assert found.numpy().tolist() == [0.0, 2.0]
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            loss, missing = (rank + 1.0) * x[1] ** 2, tf.Variable(1.0)
        found = tape.gradient(loss, {"b": [x[1]], "a": missing})
        assert found["a"] is None
        assert found["b"][0].numpy() == 9.0
        assert tape.gradient(loss, missing) is None
        assert tape.gradient(loss, missing, unconnected_gradients="zero").numpy() == 0.0
        assert tape.gradient(loss, x[1], output_gradients=tf.constant(2.0)).numpy() == 18.0

        def matrices() -> Any:
            with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
                squares = (rank + 1.0) * x[0] ** 2
                rows = tf.reshape(x[0], [2, 1])
                cubes = (rank + 1.0) * rows**3
            found = tape.jacobian(squares, {"b": [x[1]], "a": x[0]}, unconnected_gradients="zero")
            return found["a"], found["b"][0], tape.batch_jacobian(cubes, rows)

        for function in (matrices, tf.function(matrices, autograph=False)):
            found = [each.numpy().tolist() for each in function()]
            assert found == [[[3.0, 0.0], [0.0, 6.0]], [0.0, 0.0], [[[4.5]], [[18.0]]]]
        with pytest.raises(ValueError, match=mentioning("gradient_predivide_factor", "Average")):
            gradient(gradient_predivide_factor=2.0, op=hvd.Sum)
        with pytest.raises(ValueError, match=mentioning("groups", "integer")):
            gradient(groups="all")
        with pytest.raises(ValueError, match=mentioning("tf.keras.layers.Layer")):
            gradient(hvd.PartialDistributedGradientTape, local_layers=[3])

    job(2, body, dynamic_process_sets=True)


def test_some_layers_are_left_to_each_rank() -> None:
    def body(rank: int) -> None:
        layers = [tf.keras.layers.Dense(2, kernel_initializer="ones") for _ in range(2)]
        x = tf.ones([1, 2]) * (rank + 1.0)
        layers[1](layers[0](x))
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(layers[1](layers[0](x)))
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=layers[1])
        sources = [layers[0].bias, layers[1].kernel]
        bias, kernel = tape.gradient(loss, [each.value for each in sources])
        assert bias.numpy().tolist() == [2.0, 2.0]
        # 2 * (rank + 1), divided by two ranks
        assert kernel.numpy().tolist() == [[rank + 1.0] * 2] * 2
        values = [source.value for source in sources]
        ((mine, of_mine),), ((ours, of_ours),) = tape.get_local_and_global_gradients(loss, values)
        assert (mine is values[1], ours is values[0]) == (True, True)
        assert of_mine.numpy().tolist() == kernel.numpy().tolist()
        assert of_ours.numpy().tolist() == bias.numpy().tolist()

    job(2, body)


@pytest.mark.parametrize("average", [False, True])
def test_gradients_of_several_passes_are_added_up(average: bool) -> None:
    def body(rank: int) -> Any:
        def values(x: Any) -> Any:
            return (rank + 1.0) * x

        results = []
        with tf.Graph().as_default(), v1.Session() as session:
            weight, place = tf.Variable(10.0), v1.placeholder(tf.float32, [])
            optimizer = hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(1.0),
                backward_passes_per_step=2,
                average_aggregated_gradients=average,
            )
            train = optimizer.minimize(values(place) * weight)
            session.run(v1.global_variables_initializer())
            for number in (1.0, 3.0, 2.0, 2.0):
                session.run(train, {place: number})
                results.append(float(session.run(weight)))
            pairs = optimizer.compute_gradients(values(place) * weight)
            for number in (np.inf, 1.0):  # the program throws these away
                session.run(pairs, {place: number})
            for number in (1.0, 3.0):
                session.run(train, {place: number})
            results.append(float(session.run(weight)))
        weight = tf.Variable(10.0)
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0),
            backward_passes_per_step=2,
            average_aggregated_gradients=average,
        )
        place = tf.Variable(0.0, trainable=False)
        for step in (
            lambda: optimizer.minimize(lambda: values(place) * weight, var_list=[weight]),
            tf.function(
                lambda: optimizer.minimize(lambda: values(place) * weight, var_list=[weight]),
                autograph=False,
            ),
        ):
            weight.assign(10.0)
            for number in (1.0, 3.0, 2.0, 2.0):
                place.assign(number)
                step()
                results.append(float(weight.numpy()))
        return results

    for results in job(2, body):
        (*expected, after_skip) = (
            [10.0, 7.0, 7.0, 4.0, 1.0] if average else [10.0, 4.0, 4.0, -2.0, -8.0]
        )
        assert results == [*expected, after_skip, *expected, *expected]


@pytest.mark.parametrize("passes", [1, 2])
def test_an_aggregation_helper_leaves_local_variables_alone(passes: int) -> None:
    """Programs may use Horovod's helper directly, with a custom reduction."""

    def body(rank: int) -> tuple[list[float], list[float]]:
        kind = hvd.LocalGradientAggregationHelper
        found = []
        for scale in (True, False):
            helper = kind(
                passes,
                lambda gradients, variables: [hvd.allreduce(each) for each in gradients],
                False,
                False,
                rank,
                kind._OPTIMIZER_TYPE_LEGACY,
                scale_local_gradients=scale,
            )
            shared, mine = tf.Variable(0.0), tf.Variable(0.0)
            helper.register_local_var(mine)
            for _ in range(passes):
                reduced = helper.compute_gradients([tf.constant(rank + 1.0)] * 2, [shared, mine])
            found.append([float(each) for each in reduced])
        return found[0], found[1]

    scaled, whole = [1.5 * passes, 0.5 * passes], [1.5 * passes, 1.0 * passes]
    assert job(2, body) == [
        (scaled, whole),
        ([1.5 * passes, 1.0 * passes], [1.5 * passes, 2.0 * passes]),
    ]


def test_the_eager_helper_takes_its_process_set_fifth() -> None:
    def body(rank: int) -> float:
        from farandole.tensorflow.gradient_aggregation import LocalGradientAggregationHelperEager

        alone = hvd.add_process_set([0]), hvd.add_process_set([1])
        helper = LocalGradientAggregationHelperEager(
            1, lambda gradients, _: gradients, False, False, alone[rank], True
        )
        weight = tf.Variable(0.0)
        helper.register_local_var(weight)
        return float(helper.compute_gradients([tf.constant(4.0)], [weight])[0])

    # by the size of the set, which is 1
    assert job(2, body, dynamic_process_sets=True) == [4.0, 4.0]


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_every_pass_counts_in_the_global_step(op: int) -> None:
    """Hooks end training and decay learning rates by it; programs for Horovod chose their numbers
    accordingly.
    """

    def body(rank: int) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            weight, counted = tf.Variable(0.0), v1.train.get_or_create_global_step()
            optimizer = hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=3, op=op
            )
            if op == hvd.Adasum:
                train = optimizer.minimize(weight * 1.0, counted)
            else:
                train = optimizer.apply_gradients(
                    optimizer.compute_gradients(weight * 1.0), counted
                )
            session.run(v1.global_variables_initializer())
            steps = []
            for _ in range(4):
                session.run(train)
                steps.append(int(session.run(counted)))
            return steps, float(session.run(weight))

    assert job(1, body) == [([1, 2, 3, 4], -3.0)]


def test_adasum_combines_the_steps_of_a_v1_optimizer() -> None:
    def body(rank: int) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            weights = tf.Variable([0.0, 0.0])
            optimizer = hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum
            )
            train = optimizer.minimize(-weights[rank])  # orthogonal: both steps are taken whole
            session.run(v1.global_variables_initializer())
            session.run(train)
            return session.run(weights).tolist()

    assert job(2, body) == [[1.0, 1.0], [1.0, 1.0]]


def test_a_keras_optimizer_steps_with_tensorflow_variables() -> None:
    def body(rank: int) -> list[float]:
        import keras

        weight, found = tf.Variable(10.0), []
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
        optimizer.build([weight])
        for step in (lambda: optimizer.apply_gradients([(tf.constant(rank + 1.0), weight)]),) * 2:
            step()
            tf.function(step)()
            found.append(float(weight))
        return found

    assert job(2, body) == [[4.0, -2.0]] * 2


def test_optimizers_refuse_invalid_options() -> None:
    def body(rank: int) -> None:
        plain = v1.train.GradientDescentOptimizer(1.0)
        with pytest.raises(ValueError, match=mentioning("Adasum", "average_aggregated_gradients")):
            hvd.DistributedOptimizer(plain, op=hvd.Adasum, average_aggregated_gradients=True)
        with pytest.raises(ValueError, match=mentioning("Adasum", "Keras")):
            hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), op=hvd.Adasum)
        with pytest.raises(ValueError, match=mentioning("backward_passes_per_step", "0")):
            hvd.DistributedOptimizer(plain, backward_passes_per_step=0)
        several = hvd.DistributedOptimizer(plain, backward_passes_per_step=2)
        table = tf.Variable([[1.0], [2.0]])
        with pytest.raises(
            ValueError, match=mentioning("IndexedSlices", "`backward_passes_per_step`", "1")
        ):
            several.minimize(lambda: tf.reduce_sum(tf.gather(table, [0])), var_list=[table])
        optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
        assert isinstance(optimizer, tf.keras.optimizers.SGD)

    job(1, body)


def test_two_tapes_in_one_function_do_not_mix() -> None:
    def body(rank: int) -> Any:
        one, other = tf.Variable(1.0), tf.Variable([1.0, 2.0])

        @tf.function(autograph=False)
        def step(order: tuple[int, int]) -> Any:
            found: dict[int, Any] = {}
            losses = []
            for variable in (one, other):
                with tf.GradientTape() as tape:
                    loss = (rank + 1.0) * tf.reduce_sum(variable**2)
                losses.append((hvd.DistributedGradientTape(tape), loss, variable))
            for number in order:
                tape, loss, variable = losses[number]
                found[number] = tape.gradient(loss, variable)
            return found[0], found[1]

        return [[each.numpy().tolist() for each in step((0, 1))] for _ in range(3)]

    assert job(2, body) == [[[3.0, [3.0, 6.0]]] * 3] * 2


def test_functions_of_one_name_in_another_do_not_mix() -> None:
    """Rank 0 comes to the second first."""

    def body(rank: int) -> Any:
        def update_of(variable: Any, name: str | None) -> Any:
            @tf.function(autograph=False)
            def update(values: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(variable * values)
                gradient = hvd.DistributedGradientTape(tape).gradient(loss, variable)
                return gradient + hvd.allreduce(values, op=hvd.Sum, name=name)

            return update

        updates = [
            update_of(tf.Variable([0.0]), name) for name in (None, None, "explicit", "explicit")
        ]

        @tf.function(autograph=False)
        def every() -> Any:
            one, two, three, four = [
                each.get_concrete_function(tf.constant([1.0])) for each in updates
            ]
            second, fourth = two(tf.constant([100.0])), four(tf.constant([10000.0]))
            late = tf.minimum(second + fourth, 0.0) if rank == 0 else 0.0
            return (
                one(tf.constant([1.0]) + late),
                second,
                three(tf.constant([1000.0]) + late),
                fourth,
            )

        return [[float(each[0]) for each in every()] for _ in range(5)]

    assert job(2, body) == [[[3.0, 300.0, 3000.0, 30000.0]] * 5] * 2
