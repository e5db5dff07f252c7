"""Gradients through collectives, in eager mode, functions and v1 graphs; and the exchange of lists
of gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.strategies.options import GradientOptions
from farandole.tensorflow.gradients import reduce_gradients, reducer_for
from tests.kits.messages import mentioning
from tests.run_job import job

MODES = ["eager", "function", "session"]


def gradients(mode: str, builds: list[Any], values: list[Any]) -> list[Any]:
    """Return the gradients of the sum of each ``build(x)``, as lists of numbers."""

    def of(build: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(build(x))
        return tf.convert_to_tensor(tape.gradient(total, x))

    if mode == "session":
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            places = [tf.compat.v1.placeholder(tf.float32, value.shape) for value in values]
            totals = [tf.reduce_sum(build(x)) for build, x in zip(builds, places, strict=True)]
            found = [tf.compat.v1.gradients(*pair)[0] for pair in zip(totals, places, strict=True)]
            feed = dict(zip(places, values, strict=True))
            return [
                each.tolist()
                for each in session.run([tf.convert_to_tensor(each) for each in found], feed)
            ]

    def every(*tensors: Any) -> Any:
        return [of(build, x) for build, x in zip(builds, tensors, strict=True)]

    run = tf.function(every, autograph=False) if mode == "function" else every
    return [each.numpy().tolist() for each in run(*map(tf.constant, values))]


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_every_collective(mode: str) -> None:
    def body(rank: int) -> None:
        mine = rank + 1.0  # every rank weighs what it gets with this
        x = np.array([[1.0, 5.0], [4.0, 2.0]], np.float32)[[rank, 1 - rank]]
        zeros = np.array([[0.0, 2.0], [3.0, 4.0]], np.float32)[rank]
        rows = np.zeros(2 + 4 * rank, np.float32)  # how many differs from rank to rank
        swapped = [[0.0, 3.0], [3.0, 0.0]]
        cases: list[tuple[Any, Any, Any]] = [
            (lambda x: hvd.allreduce(x, op=hvd.Sum), x, [[3.0, 3.0]] * 2),
            (hvd.allreduce, x, [[1.5, 1.5]] * 2),
            (
                lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5),
                x,
                [[3.0, 3.0]] * 2,
            ),
            (lambda x: hvd.grouped_allreduce([x, x * 2.0], op=hvd.Sum)[1], x, [[6.0, 6.0]] * 2),
            (lambda x: hvd.allreduce(x, op=hvd.Max), x, swapped if rank == 0 else swapped[::-1]),
            (lambda x: hvd.allreduce(x, op=hvd.Min), x, swapped[::-1] if rank == 0 else swapped),
            # all are equal
            (lambda x: hvd.allreduce(x - tf.stop_gradient(x), op=hvd.Max), x, [[1.5, 1.5]] * 2),
            (lambda x: hvd.allreduce(x, op=hvd.Product), x, (3.0 * x[::-1]).tolist()),
            (lambda x: hvd.allreduce(x, op=hvd.Product), zeros, [[9.0, 12.0], [0.0, 6.0]][rank]),
            (hvd.allgather, x, [[1.5, 1.5]] * 2),  # averaged, as in Horovod
            (lambda x: hvd.allgather(x[: rank + 1]), x, [[1.5, 1.5], [1.5 * rank] * 2]),
            (lambda x: hvd.grouped_allgather([x, x])[0], x, [[1.5, 1.5]] * 2),
            (lambda x: hvd.broadcast(x, 1), x, [[1.5 * rank] * 2] * 2),
            (lambda x: hvd.alltoall(x), x, [[1.0, 1.0], [2.0, 2.0]]),
            (lambda x: hvd.alltoall(x, [1, 1])[0], x, [[1.0, 1.0], [2.0, 2.0]]),
            (hvd.alltoall, rows, [1.0] * (1 + 2 * rank) + [2.0] * (1 + 2 * rank)),
            (lambda x: hvd.reducescatter(x, op=hvd.Sum), x, [[2.0, 2.0], [4.0, 4.0]]),
            (lambda x: hvd.reducescatter(x, op=hvd.Average), x, [[1.0, 1.0], [2.0, 2.0]]),
            (lambda x: hvd.grouped_reducescatter([x], op=hvd.Sum)[0], x, [[2.0, 2.0], [4.0, 4.0]]),
            (lambda x: tf.gather(hvd.allreduce(x, op=hvd.Sum), [0]), x, [[3.0, 3.0], [0.0, 0.0]]),
        ]
        builds = [lambda x, build=build: build(x) * mine for build, _, _ in cases]
        found = gradients(mode, builds, [value for _, value, _ in cases])
        for number, (one, (_, _, expected)) in enumerate(zip(found, cases, strict=True)):
            assert one == expected, number

    job(2, body)


def test_second_derivatives() -> None:
    def body(rank: int) -> None:
        x = tf.Variable(3.0)
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                y = hvd.allreduce(x**3, op=hvd.Sum)
            first = inner.gradient(y, x)
        assert first.numpy() == 54.0
        assert outer.gradient(first, x).numpy() == 36.0

        def penalty() -> Any:
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    y = (rank + 1.0) * x**3
                first = hvd.DistributedGradientTape(inner).gradient(y, x)
            return first, outer.gradient(first, x)

        for run in (penalty, tf.function(penalty, autograph=False)):
            assert [each.numpy() for each in run()] == [40.5, 18.0 * (rank + 1)]

    job(2, body)


@pytest.mark.parametrize("mode", MODES)
def test_lists_of_gradients(mode: str) -> None:
    def body(rank: int) -> None:
        def reduced(x: Any) -> Any:
            rows = tf.IndexedSlices(x[None] * 2.0, tf.constant([rank]), tf.constant([3, 2]))
            half = tf.cast(x, tf.bfloat16)
            exchange = reducer_for("lists", GradientOptions(prescale=0.5, postscale=2.0))
            first, none, sparse, small = reduce_gradients(
                [x, None, rows, half], ["a", "b", "c", "d"], exchange
            )
            assert none is None
            assert (first.shape, small.dtype) == (x.shape, tf.bfloat16)
            return first, sparse.values, sparse.indices, tf.cast(small, tf.float32)

        x = np.array([1.0, 2.0], np.float32) * (rank + 1)
        for _ in range(2):
            if mode == "session":
                with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                    found = session.run(reduced(tf.constant(x)))
            else:
                run = tf.function(reduced, autograph=False) if mode == "function" else reduced
                found = [each.numpy() for each in run(tf.constant(x))]
            assert [each.tolist() for each in found] == [
                [1.5, 3.0],
                [[1.0, 2.0], [2.0, 4.0]],
                [0, 1],
                [1.5, 3.0],
            ]

    job(2, body)


def test_results_are_the_callers_to_keep() -> None:
    def body(rank: int) -> None:
        exchange = reducer_for("kept", GradientOptions(hvd.Sum))

        def reduced(x: Any) -> Any:
            return reduce_gradients([x], ["x"], exchange)[0]

        for run in (reduced, tf.function(reduced, autograph=False)):
            kept = [run(tf.fill([1000], float(number))) for number in range(5)]
            assert [each.numpy()[-1] for each in kept] == [0.0, 2.0, 4.0, 6.0, 8.0]

    job(2, body)


def test_ranks_with_different_gradients_are_reported() -> None:
    def body(rank: int) -> None:
        variables = [tf.Variable(1.0, name="one"), tf.Variable([1.0] * (2 + rank), name="odd")]

        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = variables[0] + tf.reduce_sum(variables[1])
            return hvd.DistributedGradientTape(tape).gradient(loss, variables)

        text = ("odd", "shape", "rank 0", "rank 1")
        with pytest.raises(ValueError, match=mentioning(text)):
            step()
        with pytest.raises(tf.errors.InvalidArgumentError, match=mentioning(text)):
            tf.function(step, autograph=False)()
        assert hvd.allreduce(tf.constant(1.0), op=hvd.Sum).numpy() == 2.0

    job(2, body)
