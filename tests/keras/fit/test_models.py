"""Models, their own optimizers and their statistics are equal on all ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.keras.backends import QUICK, on
from tests.keras.test_training import close, equal
from tests.kits.messages import mentions


def test_an_unbuilt_model_starts_equal(backend: str) -> None:
    def train(rank: int) -> object:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)
        keras.utils.set_random_seed(rank)
        model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), p.loss())
        first = []

        class Look(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
                if batch == 1:
                    first.extend(p.weights(self.model))

        model.fit(*hvd.shard(x, y), batch_size=4, verbose=0, callbacks=[Look()])
        return first, p.weights(model)

    zero, one = on(backend, 2, train)
    equal(zero[0], one[0], zero[1], one[1])
    assert len(zero[0]) == 4


def test_a_model_that_is_never_called_starts_equal(backend: str) -> None:
    if backend != "tensorflow":
        pytest.skip("does not apply: the others have Keras call each model before the first step")

    def train(rank: int) -> object:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        def trained(inner: object) -> object:
            model = p.own_step("tensorflow", called=False)(inner)
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5)))
            first = []

            class Look(keras.callbacks.Callback):
                def on_train_batch_end(self, batch: int, logs: object = None) -> None:
                    if batch == 0:
                        first.extend(p.weights(inner))

            model.fit(
                *hvd.shard(*p.data(16)), batch_size=4, shuffle=False, verbose=0, callbacks=[Look()]
            )
            return first, p.weights(inner)

        unbuilt = keras.Sequential(
            [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)]
        )
        return trained(p.dense(rank)), trained(unbuilt)

    zero, one = on(backend, 2, train)
    for mine, theirs in zip(zero, one, strict=True):
        equal(mine[0], theirs[0])
        equal(mine[1], theirs[1])
    assert len(zero[0][0]) == len(zero[1][0]) == 4


def test_optimizers_that_a_model_holds_for_itself_are_seen(backend: str) -> None:
    """The optimizers of a GAN: the model is compiled without them."""
    if backend != "tensorflow":
        pytest.skip("does not apply: the others step optimizers of one's own in another way")

    def train(rank: int) -> object:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        inner = p.dense(rank)
        model = p.own_step("tensorflow", called=False)(inner)
        model.compile()
        model.held = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        x, y = p.data(16)
        rows = 8 if rank == 1 else 16
        with p.said() as said:
            model.fit(x[:rows], y[:rows], batch_size=4, epochs=2, verbose=0)
        return p.weights(inner), [np.asarray(each) for each in model.held.variables], said

    zero, one = on(backend, 2, train)
    equal(zero[0], one[0])
    equal(zero[1], one[1])
    assert any(mentions(each, "(4, 2)", "numbers") for each in zero[2])


@pytest.mark.parametrize("built", [True, False])
def test_a_models_own_optimizers_begin_with_rank_0s_state(backend: str, built: bool) -> None:
    """Only rank 0 resumed from a checkpoint of a GAN; the other rank's optimizer may not have
    stepped yet.
    """
    if backend != "tensorflow":
        pytest.skip("does not apply: the others step optimizers of one's own in another way")

    def train(rank: int) -> object:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        inner = p.dense(rank)
        model = p.own_step("tensorflow", called=False)(inner)
        model.compile()
        model.held = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        if rank == 0 or built:
            model.held.build(inner.trainable_variables)
        if rank == 0:
            for variable in model.held.variables:
                variable.assign(variable + 1)
        model.fit(*hvd.shard(*p.data(16)), batch_size=4, verbose=0)
        return p.weights(inner), [np.asarray(each) for each in model.held.variables]

    zero, one = on(backend, 2, train)
    equal(zero[0], one[0])
    equal(zero[1], one[1])


def test_an_optimizer_that_keras_has_wrapped_counts_once() -> None:
    """For mixed_float16, where the model also holds the inner optimizer."""
    pytest.importorskip("keras")

    def count(rank: int) -> list[bool]:
        import keras

        import farandole.keras as hvd
        from farandole.keras.optimizer import optimizers_of
        from tests.keras import programs as p

        model = p.dense(0)
        model.held = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        model.compile(keras.optimizers.LossScaleOptimizer(model.held), p.loss())
        alone = [each is model.optimizer for each in optimizers_of(model)]
        model.several = {"critic": hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))}
        return [*alone, *(each is model.optimizer for each in optimizers_of(model))]

    assert on(QUICK, 1, count) == [[True, True, False]]


def test_statistics_of_batch_normalisation_are_those_of_all(backend: str) -> None:
    def train(rank: int) -> object:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((6,)),
                layers.BatchNormalization(momentum=0.0),
                layers.Dropout(0.5),
                layers.Dense(3),
            ]
        )
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), p.loss())
        mine, theirs = hvd.shard(x, y)
        model.fit(mine, theirs, batch_size=8, verbose=0, shuffle=False)
        return p.weights(model), mine.mean(axis=0)

    zero, one = on(backend, 2, train)
    equal(zero[0], one[0])
    np.testing.assert_allclose(zero[0][2], (zero[1] + one[1]) / 2, rtol=1e-5, atol=1e-6)


def test_adapted_normalization_is_equal_on_all_ranks(backend: str) -> None:
    """Each rank has adapted its layer to its own rows, and Keras has compiled the result."""

    def train(rank: int) -> list[object]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16, seed=rank)
        found: list[object] = []
        for fitted in (True, False):
            keras.utils.set_random_seed(0)
            layer = keras.layers.Normalization()
            layer.adapt(3.0 * x + rank)
            model = keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(3)])
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), p.loss())
            ones = np.ones((1, 6), "float32")
            model.predict(ones, verbose=0)
            if fitted:
                model.fit(x, y, batch_size=8, verbose=0)
            else:
                hvd.broadcast_global_variables(0, model)
            found.append(np.asarray(model.predict(ones, verbose=0)))
        return found

    zero, one = on(backend, 2, train)
    equal(zero, one)
    equal(zero[:1], zero[1:])


def test_a_process_set_trains_by_itself(backend: str) -> None:
    def train(rank: int) -> list[np.ndarray]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        even = hvd.add_process_set([0, 2])
        odd = hvd.add_process_set([1])
        mine = even if rank != 1 else odd
        x, y = p.data(24)
        model = p.dense(rank)
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1), process_set=mine, shard=True
        )
        model.compile(optimizer, p.loss())
        history = model.fit(x, y, batch_size=4, epochs=2, verbose=0)
        assert len(history.history["loss"]) == 2
        model.compile(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=mine), p.loss()
        )
        model.fit(
            x[: 8 + 4 * rank], y[: 8 + 4 * rank], batch_size=4, verbose=0
        )  # different numbers
        return p.weights(model)

    zero, one, two = on(backend, 3, train, dynamic_process_sets=True)
    equal(zero, two)
    assert not np.array_equal(zero[0], one[0])


def test_all_ranks_resume_from_the_file_of_one_rank(backend: str, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def train(rank: int) -> object:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)

        def fit(epochs: int, *more: object, seed: int = 0) -> object:
            model = p.dense(seed + rank)
            model.compile(
                hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), shard=True),
                p.loss(),
            )
            history = model.fit(
                x, y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=list(more)
            )
            return len(history.epoch), p.weights(model)

        whole = fit(4)
        kept = [
            keras.callbacks.BackupAndRestore(f"{folder}/all", delete_checkpoint=False)
            for _ in range(2)
        ]
        first = fit(2, kept[0])
        rest = fit(4, kept[1], seed=5)
        lone = (
            [keras.callbacks.BackupAndRestore(f"{folder}/one", delete_checkpoint=False)]
            if rank == 0
            else []
        )
        fit(3, *lone)
        alone = fit(4, *lone, seed=5)
        return whole, first, rest, alone

    for whole, first, rest, alone in on(backend, 2, train):
        assert (whole[0], first[0], rest[0], alone[0]) == (4, 2, 2, 1)
        close(rest[1], whole[1])
        close(alone[1], whole[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "one"]


def test_a_model_of_a_tensorflow_strategy_trains() -> None:
    pytest.importorskip("tensorflow")

    def train(rank: int) -> object:
        import contextlib

        import keras
        import tensorflow as tf

        import farandole.keras as hvd
        from tests.keras import programs as p

        def fitted(scope: object) -> object:
            with scope:
                model = p.dense(rank)
                model.compile(
                    hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
                    p.loss(),
                    metrics=["accuracy"],
                )
            history = model.fit(
                *hvd.shard(*p.data(32)),
                batch_size=4,
                shuffle=False,
                verbose=0,
                callbacks=[
                    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                    hvd.callbacks.MetricAverageCallback(),
                ],
            ).history
            return p.weights(model), history

        return fitted(tf.distribute.MirroredStrategy(["CPU:0"]).scope()), fitted(
            contextlib.nullcontext()
        )

    for ours, plain in on("tensorflow", 2, train):
        close(ours[0], plain[0])
        assert ours[1]["accuracy"] == pytest.approx(plain[1]["accuracy"])
        assert ours[1]["loss"] == pytest.approx(plain[1]["loss"], rel=1e-5)
