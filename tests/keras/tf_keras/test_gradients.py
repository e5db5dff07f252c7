"""Gradients of Keras 2: reduced once, added up, scaled, or absent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.strategies import LocalSGD
from tests.run_job import job

pytest.importorskip("tf_keras", reason="tf_keras is not installed")


@pytest.mark.parametrize("average", [False, True])
def test_gradients_of_several_passes_are_added_up(average: bool) -> None:
    def body(rank: int) -> Any:
        import tf_keras

        results = []
        for kind in (tf_keras.optimizers.legacy.SGD, tf_keras.optimizers.SGD):
            weight = tf.Variable(10.0)
            optimizer = hvd.DistributedOptimizer(
                kind(1.0), backward_passes_per_step=2, average_aggregated_gradients=average
            )
            for number in (1.0, 3.0, 4.0, None):  # None: the gradients accumulated before count
                gradient = None if number is None else tf.constant((rank + 1.0) * number)
                optimizer.apply_gradients([(gradient, weight)])
                results.append(float(weight.numpy()))
            assert optimizer.iterations.numpy() == 4
        return results

    for results in job(2, body):
        assert results == ([10.0, 7.0, 7.0, 4.0] if average else [10.0, 4.0, 4.0, -2.0]) * 2


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_an_old_optimizer_are_reduced_once(passes: int, compiled: bool) -> None:
    """On any way to ``apply_gradients``."""

    def body(rank: int) -> list[float]:
        import tf_keras

        weight, found = tf.Variable(10.0), []
        optimizer = hvd.DistributedOptimizer(
            tf_keras.optimizers.legacy.SGD(1.0), op=hvd.Sum, backward_passes_per_step=passes
        )

        def loss() -> Any:
            return (rank + 1.0) * weight

        def minimized() -> None:
            optimizer.minimize(loss, var_list=[weight])

        def computed() -> None:
            optimizer.apply_gradients(optimizer._compute_gradients(loss, var_list=[weight]))

        def by_argument() -> None:
            pairs = optimizer._compute_gradients(loss, var_list=[weight])
            optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)

        ways = [minimized, computed, by_argument]
        for way in map(tf.function, ways) if compiled else ways:
            for _ in range(passes):
                way()
            found.append(float(weight.numpy()))
        assert passes == 1 or int(optimizer._agg_helper.counter.numpy()) == 0
        return found

    step = 3.0 * passes
    assert job(2, body) == [[10.0 - step, 10.0 - 2 * step, 10.0 - 3 * step]] * 2


def test_gradients_of_a_new_optimizer_are_reduced_once() -> None:
    def body(rank: int) -> list[float]:
        import tf_keras

        weight = tf.Variable(10.0)
        optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(1.0), op=hvd.Sum)
        found = []
        for compute in (optimizer.compute_gradients, optimizer._compute_gradients):
            ((gradient, _),) = compute(lambda: (rank + 1.0) * weight, [weight])
            optimizer.apply_gradients([(tf.clip_by_value(gradient, 0.0, 2.5), weight)])
            found += [float(gradient), float(weight)]
        optimizer.minimize(lambda: (rank + 1.0) * weight, [weight])
        return [*found, float(weight)]

    assert job(2, body) == [[3.0, 7.5, 3.0, 5.0, 2.0]] * 2


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("outside", [True, False])
def test_local_layers_stay_local_with_scaled_losses(old: bool, outside: bool) -> None:
    def body(rank: int) -> list[float]:
        import tf_keras

        from farandole.keras.tf_keras import PartialDistributedOptimizer, callbacks

        layers = [tf_keras.layers.Dense(1, input_shape=(3,)), tf_keras.layers.Dense(1)]
        model = tf_keras.Sequential(layers)
        model.set_weights([np.full_like(each, rank + 1) for each in model.get_weights()])
        kind = (tf_keras.optimizers.legacy if old else tf_keras.optimizers).SGD
        scaled = tf_keras.mixed_precision.LossScaleOptimizer
        if outside:
            optimizer = PartialDistributedOptimizer(scaled(kind(0.0)), local_layers=layers[0])
        else:
            optimizer = scaled(PartialDistributedOptimizer(kind(0.0), local_layers=layers[0]))
        model.compile(optimizer, "mse")
        rows = np.ones((2, 3), np.float32)
        model.fit(
            rows, rows[:, :1], verbose=0, callbacks=[callbacks.BroadcastGlobalVariablesCallback(0)]
        )
        return [float(each.ravel()[0]) for each in model.get_weights()]

    assert job(2, body) == [[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 1.0, 1.0]]


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("outside", [True, False])
def test_scaled_losses(old: bool, outside: bool) -> None:
    """The gradients of all ranks decide whether a step is skipped, in either nesting of the
    optimizers.
    """

    def body(rank: int) -> list[Any]:
        import tf_keras

        def made(passes: int = 1) -> Any:
            kind = (tf_keras.optimizers.legacy if old else tf_keras.optimizers).SGD
            scaled = tf_keras.mixed_precision.LossScaleOptimizer
            if outside:
                return hvd.DistributedOptimizer(
                    scaled(kind(0.5), initial_scale=8), backward_passes_per_step=passes
                )
            return scaled(
                hvd.DistributedOptimizer(kind(0.5), backward_passes_per_step=passes),
                initial_scale=8,
            )

        optimizer = made()
        model = tf_keras.Sequential(
            [tf_keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
        )
        model.build((None, 1))
        # its gradient is the mean of the inputs
        model.compile(optimizer, lambda true, found: found)
        found = []

        def seen() -> None:
            found.append((float(model.get_weights()[0][0, 0]), float(optimizer.loss_scale.numpy())))

        for value in (rank + 1.0, np.inf if rank else 1.0, 1.0):
            model.fit(np.full((2, 1), value, "float32"), np.zeros((2, 1), "float32"), verbose=0)
            seen()
        weight = model.trainable_variables[0]
        for value in (rank + 1.0, np.inf if rank else 1.0, 1.0):
            with tf.GradientTape() as tape:
                loss = optimizer.get_scaled_loss(value * tf.reduce_sum(weight))
            gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, [weight]))
            optimizer.apply_gradients(zip(gradients, [weight], strict=True))
            seen()
        shared, local, optimizer = tf.Variable(1.0), tf.Variable(1.0), made()
        (optimizer if outside else optimizer.inner_optimizer).register_local_var(local)
        for value in (np.inf if rank else 1.0, 1.0):
            gradients = [tf.constant(rank + 1.0), tf.constant(value)]
            optimizer.apply_gradients(zip(gradients, [shared, local], strict=True))
            found.append((shared.numpy(), float(optimizer.loss_scale.numpy())))
        several, optimizer = tf.Variable(1.0), made(2)
        for value in (np.inf, 1.0, rank + 1.0, 1.0):  # the first two are one step, which is skipped
            optimizer.apply_gradients([(tf.constant(value), several)])
        return [*found, local.numpy(), several.numpy()]

    for found in job(2, body):
        assert found == [
            (0.25, 8.0),
            (0.25, 4.0),
            (-0.25, 4.0),
            (-1.0, 4.0),
            (-1.0, 2.0),
            (-1.5, 2.0),
            (1.0, 4.0),
            (0.25, 4.0),
            0.75,
            -0.25,
        ]


@pytest.mark.parametrize("old", [True, False])
def test_residuals_are_without_the_loss_scale(old: bool) -> None:
    """Results plus residuals equal the inputs, although the scale doubles after every second step."""

    def body(rank: int) -> None:
        import tf_keras

        from farandole.strategies.codecs import codec

        chosen = codec("topk:0.25")
        x = np.random.default_rng(rank).standard_normal((7, 12)).astype("float32")
        plain = (tf_keras.optimizers.legacy if old else tf_keras.optimizers).SGD(1.0)
        optimizer = tf_keras.mixed_precision.LossScaleOptimizer(
            hvd.DistributedOptimizer(plain, codec=chosen), initial_scale=64, dynamic_growth_steps=2
        )
        model = tf_keras.Sequential(
            [tf_keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        model.build((None, 12))
        model.compile(optimizer, lambda y, found: y * found)  # so that the gradient is a row
        model.fit(x, np.ones((7, 1), "float32"), batch_size=1, shuffle=False, verbose=0)
        assert float(optimizer.loss_scale) == 512.0
        (left,) = [
            array for name, array in chosen.state_dict().items() if name.startswith("residual/")
        ]
        given, left = hvd.allgather(np.stack([x.sum(0), left])[None]).numpy().mean(0)
        assert np.abs(left).max() > 0.1, "something is left"
        np.testing.assert_allclose(
            -model.get_weights()[0][:, 0], given - left, rtol=1e-4, atol=1e-5
        )

    job(2, body)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("old", [True, False])
def test_variables_without_gradients_in_some_steps(old: bool, compiled: bool) -> None:
    """See the test of this name for Keras 3. A function knows the variables that existed when it
    was traced.
    """

    def body(rank: int) -> None:
        import tf_keras

        plain = [("a",), ("b",), ("b",), ("b",), ("a", "b"), ("a",)]
        outer = [("a", "b"), ("a", "b"), ("a",), ("a",), ("b",), ("b",)]
        cases: list[tuple[Any, Any, Any]] = [
            (LocalSGD(2, outer="momentum", lr=1.0, momentum=0.5), outer, [-7.5, -7.5]),
            ("local_sgd:2", plain, [-4.5, -6.0]),
        ]
        for strategy, steps, ends in cases[:1] if compiled else cases:
            variables = {"a": tf.Variable([0.0], name="a"), "b": tf.Variable([0.0], name="b")}
            kind = (tf_keras.optimizers.legacy if old else tf_keras.optimizers).SGD
            optimizer = hvd.DistributedOptimizer(kind(1.0), strategy=strategy)
            if not old:
                optimizer.build(list(variables.values()))

            def step(
                names: tuple[str, ...], optimizer: Any = optimizer, variables: Any = variables
            ) -> None:
                gradients = [
                    tf.constant([rank + 1.0]) if name in names else None for name in variables
                ]
                optimizer.apply_gradients(zip(gradients, variables.values(), strict=True))

            taken = tf.function(step) if compiled else step
            for names in steps:
                taken(names)
            assert [float(variable[0]) for variable in variables.values()] == ends

    job(2, body)


def test_a_global_norm_of_shared_parameters_keeps_ranks_equal() -> None:
    def body(rank: int) -> None:
        import tf_keras

        for make_optimizer in (tf_keras.optimizers.SGD, tf_keras.optimizers.legacy.SGD):
            optimizer = hvd.DistributedOptimizer(
                make_optimizer(1.0, global_clipnorm=1.0), scale_local_gradients=False
            )
            local, shared = tf.Variable([0.0]), tf.Variable([0.0, 0.0])
            optimizer.register_local_var(local)
            gradients = tf.constant([0.5 + 7 * rank]), None, tf.constant([3.0, 4.0])
            optimizer.apply_gradients(
                zip(gradients, (local, tf.Variable(0.0), shared), strict=True)
            )
            np.testing.assert_allclose(shared.numpy(), [-0.6, -0.8], rtol=1e-5)
            np.testing.assert_allclose(local.numpy(), [-1.0 if rank else -0.5], rtol=1e-5)

    job(2, body)
