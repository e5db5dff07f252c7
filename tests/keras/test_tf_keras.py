"""Models of Keras 2: two ranks train as one; what is added up, averaged, left to each rank,
committed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.strategies import LocalSGD
from tests.kits.messages import mentioning, mentions
from tests.run_job import job

pytest.importorskip("tf_keras", reason="tf_keras is not installed")

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "old momentum": lambda optimizers: optimizers.legacy.SGD(0.3, momentum=0.9),
    "adam": lambda optimizers: optimizers.Adam(0.05),
}
BATCH, STEPS = 8, 6


def make(rank: int) -> Any:
    """An embedding and a layer: other weights on each rank."""
    import tf_keras

    tf_keras.utils.set_random_seed(rank)
    layers = [
        tf_keras.layers.Embedding(11, 4, input_length=3),
        tf_keras.layers.Flatten(),
        tf_keras.layers.Dense(2),
    ]
    return tf_keras.Sequential(layers)


def data(rank: int, size: int) -> tuple[Any, Any]:
    """Rank's part of each batch."""
    random = np.random.default_rng(1)
    words, targets = (
        random.integers(0, 11, (STEPS, BATCH, 3)),
        random.normal(size=(STEPS, BATCH, 2)),
    )
    part = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    return words[:, part].reshape(-1, 3), targets[:, part].reshape(-1, 2).astype(np.float32)


def trained(rank: int, size: int, name: str, **options: Any) -> list[Any]:
    import tf_keras

    from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback

    model, optimizer = make(rank), OPTIMIZERS[name](tf_keras.optimizers)
    if size > 1:
        optimizer = hvd.DistributedOptimizer(optimizer, **options)
    model.compile(optimizer, "mse")
    callbacks = [BroadcastGlobalVariablesCallback(0)] if size > 1 else []
    model.fit(
        *data(rank, size), batch_size=BATCH // size, shuffle=False, verbose=0, callbacks=callbacks
    )
    return [each.numpy() for each in model.variables]


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_two_ranks_train_as_one(name: str) -> None:
    def body(rank: int) -> Any:
        weights = trained(rank, 2, name)
        for one, other in zip(weights, trained(0, 1, name), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)
        return [*weights, *trained(rank, 2, name, sparse_as_dense=True, backward_passes_per_step=2)]

    for one, other in zip(*job(2, body), strict=True):
        np.testing.assert_array_equal(one, other)


INNER = {**OPTIMIZERS, "sgd": lambda optimizers: optimizers.SGD(0.3)}
EXCHANGES: dict[str, tuple[str, Any, dict[str, Any]]] = {  # optimizer, strategy, options
    "plain": ("old momentum", "local_sgd:4", {}),
    "outer": ("adam", LocalSGD(3, outer="nesterov", lr=0.7, momentum=0.5), {}),
    "epoch": ("adam", "local_sgd:epoch", {}),
    "passes": (
        # (iterations count every pass, as with Horovod: Adam's bias correction follows them)
        "sgd",
        "local_sgd:1",
        {
            "backward_passes_per_step": 2,
            "average_aggregated_gradients": True,
            "sparse_as_dense": True,
        },
    ),
}


def test_local_sgd_is_its_model() -> None:
    """In ``fit``, with the callback of every Horovod program; in one process, models that take
    turns are the model.
    """

    def body(rank: int) -> Any:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback

        found, kept = {}, {}
        for name, (kind, strategy, options) in EXCHANGES.items():
            model = make(rank)
            optimizer = hvd.DistributedOptimizer(
                INNER[kind](tf_keras.optimizers), strategy=strategy, **options
            )
            model.compile(optimizer, "mse")
            callbacks = [BroadcastGlobalVariablesCallback(0)]
            model.fit(
                *data(rank, 2), batch_size=BATCH // 2, shuffle=False, verbose=0, callbacks=callbacks
            )
            found[name] = [each.numpy() for each in model.variables]
            kept[name] = optimizer.state_dict()
            optimizer.load_state_dict(kept[name])
        assert [len(state["slots"]) for state in kept.values()] == [0, 2, 0, 0]
        _gossips(rank)
        with pytest.raises(
            ValueError,
            match=mentioning("local_sgd:3", "'local_sgd:1'"),
        ):
            optimizer.load_state_dict(kept["outer"])
        with pytest.raises(ValueError, match=mentioning("'local_sgd:2'", "LossScaleOptimizer")):
            hvd.DistributedOptimizer(
                tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD()),
                strategy="local_sgd:2",
            )
        return found, _taking_turns() if rank == 0 else None

    (one, model), (two, _) = job(2, body, store=True)
    for name, weights in one.items():
        for mine, other, wanted in zip(weights, two[name], model[name], strict=True):
            np.testing.assert_array_equal(mine, other, err_msg=name)
            np.testing.assert_allclose(mine, wanted, rtol=2e-4, atol=2e-5, err_msg=name)


def test_statistics_are_averaged_at_the_end_of_an_epoch() -> None:
    """Of a strategy that keeps nothing, and of one that does."""

    def body(rank: int) -> Any:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback

        x, found = np.random.default_rng(rank).normal(rank, 1.0, (24, 3)).astype(np.float32), []
        for strategy in ("local_sgd:4", "local_sgd:4,outer=nesterov"):
            layers = [
                tf_keras.layers.Dense(2),
                tf_keras.layers.BatchNormalization(),
                tf_keras.layers.Dense(1),
            ]
            model = tf_keras.Sequential(layers)
            model.compile(
                hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.1), strategy=strategy), "mse"
            )
            weights = model.get_weights
            ends: list[Any] = []
            note = tf_keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda *_, w=weights, to=ends: to.append(w())
            )
            callbacks = [BroadcastGlobalVariablesCallback(0), note]
            model.fit(
                x,
                x.sum(1, keepdims=True),
                batch_size=4,
                shuffle=False,
                verbose=0,
                callbacks=callbacks,
            )
            found.append((ends[-1], weights()))
        return found

    for (own, one), (others, other) in zip(*job(2, body), strict=True):
        for mine, theirs, *means in zip(own, others, one, other, strict=True):
            assert not np.array_equal(mine, theirs)
            for mean in means:
                np.testing.assert_allclose(mean, (mine + theirs) / 2, rtol=1e-5, atol=1e-6)


def test_what_normalization_makes_of_its_weights_is_alike() -> None:
    """Each rank has adapted its layer to its own rows, and Keras has compiled what came of it."""

    def body(rank: int) -> Any:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback

        x = np.random.default_rng(rank).normal(rank, 1.0, (16, 3)).astype(np.float32)
        layer = tf_keras.layers.Normalization()
        layer.adapt(x)
        model = tf_keras.Sequential([tf_keras.Input((3,)), layer, tf_keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.1)), "mse")
        ones = np.ones((1, 3), np.float32)
        model.predict(ones, verbose=0)
        model.fit(
            x, x[:, :1], batch_size=4, verbose=0, callbacks=[BroadcastGlobalVariablesCallback(0)]
        )
        return model.predict(ones, verbose=0)

    one, two = job(2, body)
    np.testing.assert_array_equal(one, two)


def _gossips(rank: int) -> None:
    """In the background; the end of ``fit`` gives all ranks the mean of what both have learned."""
    import tf_keras

    variable = tf_keras.backend.variable([0.0])
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(1.0), strategy="gossip_async")
    optimizer.build([variable])
    for _ in range(3 + 4 * rank):
        optimizer.apply_gradients([(np.array([rank + 1.0], np.float32), variable)])
    optimizer.average_weights()
    np.testing.assert_allclose(variable.numpy(), [-(3 + 14) / 2], rtol=1e-5)

    variable = tf_keras.backend.variable([0.0])
    sgd, spec = tf_keras.optimizers.SGD(1.0), "gossip:complete,gamma=1"
    # it leaves out nothing
    optimizer = hvd.DistributedOptimizer(sgd, strategy=spec, codec="topk:1")
    optimizer.build([variable])
    for _ in range(3):
        optimizer.apply_gradients([(np.array([rank + 1.0], np.float32), variable)])
    np.testing.assert_allclose(variable.numpy(), [-4.5], rtol=1e-5)


def _taking_turns() -> dict[str, list[Any]]:
    import tf_keras

    found = {}
    for name, every, passes in (
        ("plain", 4, 1),
        ("outer", 3, 1),
        ("epoch", STEPS, 1),
        ("passes", 1, 2),
    ):
        models = [make(0) for _ in range(2)]
        for model in models:
            model.compile(INNER[EXCHANGES[name][0]](tf_keras.optimizers), "mse")
        anchor = models[0].get_weights()
        velocity = [np.zeros_like(weight) for weight in anchor]
        rows = BATCH // 2 * passes
        for step in range(1, STEPS // passes + 1):
            for rank, model in enumerate(models):
                x, y = data(rank, 2)
                model.train_on_batch(
                    x[(step - 1) * rows : step * rows], y[(step - 1) * rows : step * rows]
                )
            if step % every and step < STEPS // passes:
                continue
            mean = [
                (a + b) / 2 for a, b in zip(*[model.get_weights() for model in models], strict=True)
            ]
            if name == "outer":
                way = [old - new for old, new in zip(anchor, mean, strict=True)]
                velocity = [0.5 * kept + new for kept, new in zip(velocity, way, strict=True)]
                pairs = zip(anchor, way, velocity, strict=True)
                mean = anchor = [old - 0.7 * (new + 0.5 * kept) for old, new, kept in pairs]
            for model in models:
                model.set_weights(mean)
        found[name] = mean
    return found


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
            for number in (1.0, 3.0, 4.0, None):  # None: what was added up before counts
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
    """However they get to ``apply_gradients``."""

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

        def told() -> None:
            pairs = optimizer._compute_gradients(loss, var_list=[weight])
            optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)

        ways = [minimized, computed, told]
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


def test_local_variables_configurations_and_what_is_refused() -> None:
    def body(rank: int) -> None:
        import tf_keras

        mine, common = tf.Variable(1.0), tf.Variable(1.0)
        optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.legacy.SGD(1.0))
        optimizer.register_local_var(mine)
        gradient = tf.constant(rank + 1.0)
        optimizer.apply_gradients([(gradient, mine), (gradient, common)])
        assert (mine.numpy(), common.numpy()) == (1.0 - (rank + 1.0) / 2, -0.5)
        optimizer.apply_gradients([(gradient, common)], experimental_aggregate_gradients=False)
        assert common.numpy() == -1.5 - rank  # the caller has exchanged them
        again = type(optimizer).from_config(optimizer.get_config())
        assert again.get_config() == optimizer.get_config()
        assert isinstance(optimizer, tf_keras.optimizers.legacy.SGD)
        with pytest.raises(ValueError, match=mentioning("distributed")):
            hvd.DistributedOptimizer(optimizer)
        with pytest.raises(ValueError, match=mentioning("Adasum", "Keras")):
            hvd.DistributedOptimizer(tf_keras.optimizers.SGD(), op=hvd.Adasum)
        with pytest.raises(ValueError, match=mentioning("Average", "Sum")):
            hvd.DistributedOptimizer(tf_keras.optimizers.SGD(), op=hvd.Min)

    job(2, body)


def test_a_metric_counts_the_first_batch_of_each_rank() -> None:
    """Models with a ``train_step`` of their own (a GAN, a VAE) have metrics among their
    variables.
    """

    def body(rank: int) -> None:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import (
            BroadcastGlobalVariablesCallback,
            MetricAverageCallback,
        )

        class Model(tf_keras.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.inner = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(1,))])
                self.seen = tf_keras.metrics.Mean(name="seen")

            def train_step(self, data: Any) -> Any:
                self.optimizer.minimize(
                    lambda: self.inner(data[0])[0, 0], self.inner.trainable_variables
                )
                self.seen.update_state(data[0])
                return {"seen": self.seen.result()}

        model = Model()
        model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.1)))
        x = np.array([[0.0], [4.0]], np.float32) + 10 * rank  # two batches
        callbacks = [BroadcastGlobalVariablesCallback(0), MetricAverageCallback()]
        seen = model.fit(x, x, batch_size=1, shuffle=False, verbose=0, callbacks=callbacks).history[
            "seen"
        ]
        assert seen == [7.0]  # of 0, 4, 10, 14

    job(2, body)


def test_models_train_as_one_without_eager_execution() -> None:
    """As old programs do: ``tf.compat.v1.disable_eager_execution()``."""

    def train(rank: int, size: int) -> list[Any]:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import (
            BroadcastGlobalVariablesCallback,
            MetricAverageCallback,
        )

        with tf.Graph().as_default(), tf.compat.v1.Session():
            model, optimizer = make(rank), tf_keras.optimizers.legacy.SGD(0.3, momentum=0.9)
            model.compile(hvd.DistributedOptimizer(optimizer) if size > 1 else optimizer, "mse")
            callbacks = (
                [BroadcastGlobalVariablesCallback(0), MetricAverageCallback()] if size > 1 else []
            )
            kwargs = {"batch_size": BATCH // size, "epochs": 2, "shuffle": False, "verbose": 0}
            losses = model.fit(*data(rank, size), callbacks=callbacks, **kwargs).history["loss"]
            return [*model.get_weights(), np.array(losses)]

    results, single = job(2, lambda rank: train(rank, 2)), train(0, 1)
    for result in results:
        for value, other in zip(result, single, strict=True):
            np.testing.assert_allclose(value, other, rtol=2e-4, atol=1e-5)


def gan(optimizers: list[Any]) -> Any:
    """A model that steps its first optimizer in each batch, and its second in each second one."""
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


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_models_own_optimizers_begin_with_the_roots_state(old: bool, passes: int) -> None:
    """Rank 0 alone went on from a checkpoint of a GAN; the other's second optimizer waits for its
    first step.
    """

    def body(rank: int) -> Any:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback
        from farandole.keras.tf_keras.optimizer import make_slots

        kind = tf_keras.optimizers.legacy.SGD if old else tf_keras.optimizers.SGD
        plain = [kind(0.1, momentum=0.9) for _ in range(2)]
        model = gan(
            [hvd.DistributedOptimizer(each, backward_passes_per_step=passes) for each in plain]
        )
        if rank == 0:
            for part, optimizer in zip(
                model.parts, [model.first, model.others["second"]], strict=True
            ):
                make_slots(optimizer, part.trainable_weights)
                for variable in optimizer.variables() if old else optimizer.variables:
                    variable.assign(variable + 1)
        x = np.array([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]], np.float32) + rank
        model.fit(
            x,
            x,
            batch_size=1,
            shuffle=False,
            verbose=0,
            callbacks=[BroadcastGlobalVariablesCallback(0)],
        )
        return [each.numpy() for part in model.parts for each in part.weights]

    zero, one = job(2, body)
    for mine, other in zip(zero, one, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_models_own_optimizers_exchange_weights_per_epoch() -> None:
    def body(rank: int) -> Any:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback

        plain = [tf_keras.optimizers.SGD(0.01) for _ in range(2)]
        model = gan([hvd.DistributedOptimizer(each, strategy="local_sgd:epoch") for each in plain])
        x, found = np.array([[1.0], [2.0]], np.float32) + rank, []
        note = tf_keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_: found.append(model.get_weights())
        )
        callbacks = [BroadcastGlobalVariablesCallback(0), note]
        model.fit(x, x, batch_size=1, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        return found

    zero, one = job(2, body)
    for mine, other in zip(zero, one, strict=True):
        for first, second in zip(mine, other, strict=True):
            np.testing.assert_array_equal(first, second)


def test_metrics_are_averaged_and_states_go_back() -> None:
    def body(rank: int) -> None:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import MetricAverageCallback

        logs = {
            "loss": rank + 1.0,
            "lr": rank + 0.5,
            "f1_score": np.array([rank, 0.5], np.float32),
            "a": 3,
        }
        MetricAverageCallback().on_epoch_end(0, logs)
        assert logs.pop("f1_score").tolist() == [0.5, 0.5]
        assert logs == {"loss": 1.5, "lr": rank + 0.5, "a": 3.0}
        model = make(rank)
        with pytest.raises(ValueError, match=mentioning("Model", "built")):
            hvd.elastic.TensorFlowKerasState(tf_keras.Sequential([tf_keras.layers.Dense(1)]))
        model.build((None, 3))
        state = hvd.elastic.TensorFlowKerasState(model, tf_keras.optimizers.Adam(), epoch=rank)
        state.sync()
        weights = hvd.allgather_object([each.tolist() for each in model.get_weights()])
        assert weights[0] == weights[1]
        model.set_weights([each + 1.0 for each in model.get_weights()])
        state.epoch = 5
        state.restore()
        assert ([each.tolist() for each in model.get_weights()], state.epoch) == (weights[0], 0)

    job(2, body)


@pytest.mark.parametrize("old", [True, False])
def test_a_state_before_the_first_step_keeps_its_momentum(old: bool) -> None:
    def body(rank: int) -> None:
        import tf_keras

        model = make(0)
        model.build((None, 3))
        optimizers = tf_keras.optimizers.legacy if old else tf_keras.optimizers
        model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.1, momentum=0.9)), "mse")
        state = hvd.elastic.TensorFlowKerasState(model)
        state.sync()
        rows = np.eye(3, dtype=np.float32)
        found = []
        for _ in range(2):
            model.fit(
                rows, model.predict(rows, verbose=0) + rank + 1, epochs=3, verbose=0, shuffle=False
            )
            found.append([each.tolist() for each in model.get_weights()])
            state.restore()
        assert found[0] == found[1]

    job(2, body)


@pytest.mark.parametrize("old", [True, False])
def test_a_state_has_the_gradients_that_wait_for_a_step(old: bool) -> None:
    """Of three passes one is done at the commit; those after it must not count twice."""

    def body(rank: int) -> None:
        import tf_keras

        optimizers = tf_keras.optimizers.legacy if old else tf_keras.optimizers
        rows = np.eye(3, dtype=np.float32)

        def made() -> Any:
            model = make(0)
            model.build((None, 3))
            optimizer = hvd.DistributedOptimizer(
                optimizers.SGD(0.1), backward_passes_per_step=3, sparse_as_dense=True
            )
            model.compile(optimizer, "mse")
            return model

        def train(model: Any, *passes: int) -> list[Any]:
            for number in passes:
                model.train_on_batch(rows * (number + 1), np.ones((3, 2)) * (rank + number))
            return [each.tolist() for each in model.get_weights()]

        expected, model = train(made(), 0, 1, 2), made()
        state = hvd.elastic.TensorFlowKerasState(model)
        train(model, 0, 1)
        state.restore()  # to before the first of all
        train(model, 0)
        state.commit()
        train(model, 1)
        state.restore()
        assert train(model, 1, 2) == expected
        state.restore()
        assert train(model, 1, 2) == expected

    job(2, body)


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
def test_learning_rates_and_momentum(old: bool) -> None:
    """Warm-up over two epochs, then a tenth: after each batch the weight is where the
    formulas say.
    """

    def body(rank: int) -> None:
        import tf_keras

        from farandole.keras.tf_keras import callbacks

        optimizers = tf_keras.optimizers.legacy if old else tf_keras.optimizers
        model = tf_keras.Sequential(
            [tf_keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
        )
        model.build((None, 1))
        # the loss is the weight itself, so that its gradient is 1
        model.compile(
            hvd.DistributedOptimizer(optimizers.SGD(0.4, momentum=0.5)), lambda true, found: found
        )
        found: list[float] = []

        class Watch(tf_keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                found.append(float(self.model.get_weights()[0][0, 0]))

        rates = [
            callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1),
            callbacks.LearningRateScheduleCallback(0.4, 0.1, start_epoch=2),
        ]
        history = model.fit(
            np.ones((3, 1), "float32"),
            np.zeros((3, 1), "float32"),
            batch_size=1,
            epochs=4,
            verbose=0,
            callbacks=[*rates, Watch()],
        )
        wanted = [0.4 * (1 + step / 6) / 2 for step in range(1, 7)] + [0.4] * 3 + [0.04] * 3
        weight, velocity, before, expected = 1.0, 0.0, 0.4, []
        for rate in wanted:
            velocity = 0.5 * (rate / before) * velocity - rate
            weight, before = weight + velocity, rate
            expected.append(weight)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        np.testing.assert_allclose(history.history["lr"], [0.3, 0.4, 0.4, 0.04], rtol=1e-6)

    job(2, body)


@pytest.mark.parametrize("old", [True, False])
def test_a_saved_model_goes_on_with_the_state_of_its_optimizer(old: bool, tmp_path: Path) -> None:
    """Keras itself begins anew, though the folder has it."""
    folder = str(tmp_path / "model")

    def body(rank: int) -> None:
        import tf_keras

        from farandole.keras.tf_keras import allgather_object, load_model

        optimizers = tf_keras.optimizers.legacy if old else tf_keras.optimizers
        model = make(0)
        model.compile(hvd.DistributedOptimizer(optimizers.Adam(0.05)), "mse")
        words, targets = data(rank, 2)
        options = {"batch_size": BATCH // 2, "shuffle": False, "verbose": 0}
        model.fit(words, targets, **options)
        if rank == 0:
            model.save(folder, save_format="tf")
        allgather_object(None)
        again = load_model(folder)
        assert again.optimizer.iterations.numpy() == STEPS
        for each in (model, again):
            each.fit(words, targets, **options)
        for one, two in zip(model.get_weights(), again.get_weights(), strict=True):
            np.testing.assert_array_equal(one, two)

    job(2, body)


def test_a_file_without_the_state_of_its_optimizer_is_told(tmp_path: Path) -> None:
    """Keras 2 writes none of an old optimizer, without a word."""
    file = str(tmp_path / "model.keras")

    def body(rank: int) -> None:
        import tf_keras

        from farandole.keras.tf_keras import load_model
        from tests.keras.programs import said

        model = make(0)
        model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.legacy.Adam(0.05)), "mse")
        model.save(file)
        with said() as messages:
            load_model(file)
            assert mentions(messages[0], "model.keras", "optimizer")

    job(1, body)


@pytest.mark.parametrize("ending", ["h5", "keras"])
def test_models_are_saved_and_go_on(ending: str, tmp_path: Path) -> None:
    file = str(tmp_path / f"model.{ending}")

    def body(rank: int) -> None:
        import tf_keras

        from farandole.keras.tf_keras import allgather_object, load_model, save
        from farandole.keras.tf_keras.callbacks import (
            BestModelCheckpoint,
            BroadcastGlobalVariablesCallback,
        )

        optimizers = tf_keras.optimizers
        adam = optimizers.legacy.Adam if ending == "h5" else optimizers.Adam
        model = make(rank)
        model.compile(hvd.DistributedOptimizer(adam(0.05)), "mse")
        best = BestModelCheckpoint(monitor="loss")
        with pytest.raises(ValueError, match=mentioning("filepath")):
            best.on_train_begin()
        best.filepath = file
        words, targets = data(rank, 2)
        callbacks = [BroadcastGlobalVariablesCallback(0), *([best] if rank == 0 else [])]
        model.fit(words, targets, batch_size=BATCH // 2, verbose=0, callbacks=callbacks)
        allgather_object(None)
        plain = tf_keras.models.load_model(file, compile=True)
        assert type(plain.optimizer) is adam
        again = load_model(file)
        assert type(again.optimizer) is not adam
        assert again.optimizer.iterations.numpy() == STEPS
        # rank 0 alone loads, as in Horovod's examples, and the callback gives what it has to all
        if rank == 1:
            again = make(7)
            again.compile(hvd.DistributedOptimizer(adam(0.05)), "mse")
        for each, first in ((model, []), (again, [BroadcastGlobalVariablesCallback(0)])):
            # momentum and all, they take the same steps
            each.fit(
                words, targets, batch_size=BATCH // 2, shuffle=False, verbose=0, callbacks=first
            )
        for one, two in zip(model.get_weights(), again.get_weights(), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
        sums = allgather_object([float(each.sum()) for each in again.get_weights()])
        assert sums[0] == sums[1]
        again.layers[-1].bias.assign_add([float(rank)] * 2)
        save(again, file)  # rank 0's
        assert [float(each.sum()) for each in load_model(file).get_weights()] == sums[0]

    job(2, body)


def test_custom_objects_may_make_distributed_optimizers(tmp_path: Path) -> None:
    """Their options count, as in programs for Horovod."""
    file = str(tmp_path / "model.h5")

    def body(rank: int) -> None:
        import tf_keras

        from farandole.keras.tf_keras import load_model

        class Mine(tf_keras.optimizers.SGD):  # type: ignore[misc]
            pass

        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(2,))])
        model.compile(hvd.DistributedOptimizer(Mine(0.5)), "mse")
        model.save(file)
        again = load_model(
            file,
            custom_objects={
                "Mine": lambda **o: hvd.DistributedOptimizer(Mine(**o), backward_passes_per_step=3)
            },
        )
        assert again.optimizer._agg_helper.backward_passes_per_step == 3
        assert load_model(file, [Mine]).optimizer._agg_helper.backward_passes_per_step == 1

    job(1, body)


def test_a_loop_of_ones_own_calls_on_batch_end() -> None:
    """Programs with ``train_on_batch`` call what Horovod's callback overrides."""

    def body(rank: int) -> Any:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback

        model = make(rank)
        model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.1)), "mse")
        callback = BroadcastGlobalVariablesCallback(0)
        callback.set_model(model)
        for batch in range(2):
            model.train_on_batch(*data(rank, 2))
            callback.on_batch_end(batch)
        return [each.tolist() for each in model.get_weights()]

    one, two = job(2, body)
    assert one == two


def test_layers_of_a_rank_of_its_own() -> None:
    def body(rank: int) -> Any:
        import tf_keras

        from farandole.keras.tf_keras import PartialDistributedOptimizer
        from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback

        model = make(0)
        with pytest.raises(ValueError, match=mentioning("layers")):
            PartialDistributedOptimizer(tf_keras.optimizers.SGD(0.1), local_layers=["dense"])
        optimizer = PartialDistributedOptimizer(
            tf_keras.optimizers.SGD(0.1), local_layers=model.layers[-1]
        )
        model.compile(optimizer, "mse")
        model.fit(*data(rank, 2), batch_size=BATCH // 2, verbose=0, shuffle=False)
        found = model.get_weights()
        for kind in (tf_keras.optimizers.legacy.SGD, tf_keras.optimizers.SGD):
            model = make(rank)
            model.layers[-1].trainable = kind is tf_keras.optimizers.SGD
            optimizer = PartialDistributedOptimizer(
                kind(0.1, momentum=0.9), local_layers=model.layers[-1]
            )
            model.compile(optimizer, "mse")
            callback = BroadcastGlobalVariablesCallback(0)
            x, y = data(rank, 2)
            model.fit(x, y, batch_size=len(x), verbose=0, callbacks=[callback])
            slots = (
                optimizer.get_weights()[1:]
                if kind is not tf_keras.optimizers.SGD
                else optimizer.momentums
            )
            found += [*model.get_weights(), *map(np.asarray, slots)]
        return [each.tolist() for each in found]

    one, two = job(2, body)
    same = [True, False, False]
    assert [mine == theirs for mine, theirs in zip(one, two, strict=True)] == [
        *same,
        True,
        False,
        True,
        True,
        *same,
        *same,
    ]


def test_values_now_and_in_a_graph() -> None:
    def body(rank: int) -> None:
        from tf_keras.api._v1.keras import backend

        from farandole.keras import tf_keras as keras_2

        def found() -> list[Any]:
            value = [rank + 1.0] * 2
            return [
                np.asarray(each).tolist()
                for each in (
                    keras_2.allreduce(value),
                    keras_2.allreduce(value, op=keras_2.Sum),
                    keras_2.broadcast(value, 1),
                    keras_2.allgather(value[: rank + 1]),
                    keras_2.reducescatter(value),
                )
            ]

        expected = [[1.5, 1.5], [3.0, 3.0], [2.0, 2.0], [1.0, 2.0, 2.0], [1.5]]
        assert found() == expected
        with pytest.raises(RuntimeError, match=mentioning("eager")):
            keras_2.broadcast_global_variables(0)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            backend.set_session(session)
            assert found() == expected
            variable = tf.compat.v1.get_variable("v", initializer=float(rank))
            session.run(variable.initializer)
            keras_2.broadcast_global_variables(1)
            assert session.run(variable) == 1.0
        backend.clear_session()

    job(2, body)


def test_callbacks_of_elastic_jobs() -> None:
    def body(rank: int) -> Any:
        import tf_keras

        from farandole.keras.tf_keras import elastic

        model = make(rank)
        model.build((None, 3))
        model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.legacy.SGD(0.1)), "mse")
        state = elastic.KerasState(model, epoch=3, batch=2)
        seen: list[tuple[int, int]] = []
        state.commit = lambda: seen.append((state.epoch, state.batch))
        callbacks = [
            elastic.UpdateBatchStateCallback(state),
            elastic.UpdateEpochStateCallback(state),
            elastic.CommitStateCallback(state, batches_per_commit=4),
        ]
        words, targets = data(rank, 2)
        model.fit(words, targets, batch_size=BATCH // 2, verbose=0, callbacks=callbacks)
        return seen, state.epoch, state.batch

    assert job(2, body) == [([(3, 6), (4, 0)], 4, 0)] * 2


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("outside", [True, False])
def test_scaled_losses(old: bool, outside: bool) -> None:
    """Everybody's gradients decide whether a step is skipped, whichever optimizer is inside the
    other.
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
    """What came, and what is left, is what was given, though the scale doubles after every second
    step.
    """

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


def test_codec_state_survives_freezing_layers_by_compile() -> None:
    def body(rank: int) -> None:
        import tf_keras

        from farandole.strategies.codecs import codec

        layers = [
            tf_keras.layers.Dense(4, use_bias=False, kernel_initializer="zeros", name=name)
            for name in ("first", "other")
        ]
        inputs = tf_keras.Input((1,))
        model = tf_keras.Model(inputs, tf_keras.layers.add([layer(inputs) for layer in layers]))
        optimizer = hvd.DistributedOptimizer(
            tf_keras.optimizers.legacy.SGD(-1.0), codec=codec("topk:0.25")
        )
        row, slopes = np.ones((1, 1), np.float32), np.array([[8.0, 5.0, 2.0, 1.0]], np.float32)
        for frozen, first, other in (
            (False, [8.0, 0, 0, 0], [8.0, 0, 0, 0]),
            (True, [8.0, 0, 0, 0], [8.0, 10.0, 0, 0]),
            (False, [8.0, 10.0, 0, 0], [24.0, 10.0, 0, 0]),
        ):
            layers[0].trainable = not frozen
            model.compile(optimizer, lambda wanted, found: tf.reduce_sum(wanted * found))
            model.train_on_batch(row, slopes)
            assert [layer.kernel.numpy()[0].tolist() for layer in layers] == [first, other]

    job(2, body)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("old", [True, False])
def test_variables_without_gradients_in_some_steps(old: bool, compiled: bool) -> None:
    """See the test of this name for Keras 3. A function knows the variables that there were when it
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


def test_a_global_norm_of_what_ranks_share_leaves_them_alike() -> None:
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


@pytest.mark.parametrize("strategy", ["ps:1", LocalSGD(1, outer="nesterov", lr=1.0, momentum=0.5)])
@pytest.mark.parametrize("function", [False, True])
def test_a_variable_unfrozen_later_starts_from_its_old_value(strategy: Any, function: bool) -> None:
    def body(rank: int) -> list[float]:
        import tf_keras

        optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(1.0), strategy=strategy)
        first, later = tf.Variable([0.0]), tf.Variable([4.0])
        optimizer.build([first, later])
        for variables in ([first], [first, later]):

            def step(variables: Any = variables) -> None:
                optimizer.apply_gradients(
                    [(tf.constant([1.0 + 2 * rank]), variable) for variable in variables]
                )

            (tf.function(step) if function else step)()
        return [float(later.numpy()[0])]

    expected = 2.0 if isinstance(strategy, str) else 1.0
    assert job(2, body, store=True) == [[expected]] * 2


@pytest.mark.parametrize("where", ["one folder", "a folder each", "rank 0"])
def test_training_goes_on_everywhere_from_a_backup(where: str, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def body(rank: int) -> Any:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback

        words, targets = data(rank, 2)
        mine = f"{folder}/{rank}" if where == "a folder each" else folder

        def fit(epochs: int, backup: bool = True, *, seed: int = 0) -> Any:
            model = make(seed + rank)
            model.build((None, 3))
            model.compile(
                hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.1, momentum=0.9)), "mse"
            )
            callbacks = [BroadcastGlobalVariablesCallback(0)]
            if backup and (where != "rank 0" or rank == 0):
                callbacks.append(
                    tf_keras.callbacks.BackupAndRestore(mine, delete_checkpoint=epochs == 4)
                )
            history = model.fit(
                words, targets, BATCH // 2, epochs, verbose=0, callbacks=callbacks, shuffle=False
            )
            assert "_maybe_load_initial_counters_from_ckpt" not in model.__dict__
            return history.epoch, model.get_weights()

        whole, first = fit(4, backup=False), fit(2)
        if where == "a folder each" and rank == 1:  # it died before it had written
            shutil.rmtree(mine)
        return whole, first, fit(4, seed=5)

    for whole, first, rest in job(2, body):
        assert (whole[0], first[0], rest[0]) == ([0, 1, 2, 3], [0, 1], [2, 3])
        for mine, theirs in zip(rest[1], whole[1], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert not list(tmp_path.glob("**/ckpt*"))


@pytest.mark.parametrize("old", [True, False])
def test_rank_0s_loaded_learning_rate_is_broadcast(old: bool) -> None:
    def body(rank: int) -> tuple[float, list[Any]]:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback

        optimizers = tf_keras.optimizers.legacy if old else tf_keras.optimizers
        model = make(0)
        model.build((None, 3))
        # as a checkpoint says
        model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.1 if rank else 0.01)), "mse")
        words, targets = data(rank, 2)
        model.fit(
            words, targets, batch_size=4, verbose=0, callbacks=[BroadcastGlobalVariablesCallback(0)]
        )
        return float(model.optimizer.learning_rate), [each.tolist() for each in model.get_weights()]

    (rate, weights), other = job(2, body)
    assert rate == pytest.approx(0.01)
    assert other == (rate, weights)
