"""Models of Keras 2: ranks train as one, and local layers stay local."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from tests.keras.tf_keras.models import BATCH, OPTIMIZERS, data, make
from tests.kits.messages import mentioning, mentions
from tests.run_job import job

pytest.importorskip("tf_keras", reason="tf_keras is not installed")


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
    """Models with a custom ``train_step`` (a GAN, a VAE) have metrics among their variables."""

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
    """With ``tf.compat.v1.disable_eager_execution()``, as in old programs."""

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


@pytest.mark.parametrize("old", [True, False])
def test_learning_rates_and_momentum(old: bool) -> None:
    """Warm-up over two epochs, then a tenth: after each batch the weight has the value of the
    formulas.
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


def test_a_custom_loop_calls_on_batch_end() -> None:
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


def test_layers_local_to_a_rank() -> None:
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


@pytest.mark.parametrize("callback", [True, False])
def test_a_plain_optimizer_is_found_after_an_epoch(callback: bool) -> None:
    def body(rank: int) -> list[str]:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback
        from tests.keras.programs import said

        model = make(0)
        model.compile(tf_keras.optimizers.SGD(0.1), "mse")
        own = [BroadcastGlobalVariablesCallback(0)] if callback else []
        with said() as messages:
            model.fit(*data(rank, 2), batch_size=BATCH // 2, verbose=0, callbacks=own)
        return messages

    zero, one = job(2, body)
    assert one == []
    assert len(zero) == 1
    assert mentions(zero[0], "SGD", "2", "FAR012"), zero
