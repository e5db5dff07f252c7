"""Horovod's callbacks, and saving."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.keras.backends import BACKENDS, QUICK, on
from tests.keras.test_training import close, equal
from tests.kits.messages import mentioning


# a variable of Keras on all of them
@pytest.mark.parametrize("backend", list(dict.fromkeys([BACKENDS[0], QUICK])))
def test_learning_rates(backend: str) -> None:
    """Warm-up and schedules, on two ranks; momentum correction against a loop that does it by
    hand.
    """
    every = backend == QUICK  # the rest of what has nothing to do with the backend

    def train(rank: int) -> dict[str, object]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)
        SGD = keras.optimizers.SGD

        class Rates(keras.callbacks.Callback):
            def __init__(self) -> None:
                super().__init__()
                self.seen = []

            def on_train_batch_end(self, batch: int, logs: object = None) -> None:
                self.seen.append(float(np.asarray(self.model.optimizer.learning_rate)))

        def fit(callback: object, epochs: int, momentum: float = 0.0) -> object:
            rates = Rates()
            model = p.dense(0)
            model.compile(
                hvd.DistributedOptimizer(SGD(0.4, momentum=momentum), shard=True), p.loss()
            )
            history = model.fit(
                x,
                y,
                batch_size=4,
                epochs=epochs,
                shuffle=False,
                verbose=0,
                callbacks=[callback, rates],
            )
            return rates.seen, history.history["lr"], p.weights(model)

        c = hvd.callbacks
        found = {
            "warmup": fit(c.LearningRateWarmupCallback(0.4, warmup_epochs=2), 3),
            "momentum": fit(c.LearningRateScheduleCallback(0.4, lambda e: 0.5**e), 2, 0.9),
        }
        if every:
            found["within an epoch"] = fit(c.LearningRateWarmupCallback(0.4, warmup_epochs=1.5), 3)
            found["staircase"] = fit(
                c.LearningRateScheduleCallback(0.4, lambda epoch: 0.5**epoch, start_epoch=1), 3
            )
            found["power"] = fit(
                c.LearningRateScheduleCallback(0.4, 0.1, start_epoch=1, end_epoch=2), 3
            )
            found["smooth"] = fit(
                c.LearningRateScheduleCallback(0.4, lambda e: 1 / (1 + e), staircase=False), 1
            )
        model = p.dense(0)
        model.compile(SGD(0.4, momentum=0.9), p.loss())
        model.train_on_batch(x[:8], y[:8])
        model.train_on_batch(x[8:], y[8:])
        model.optimizer.learning_rate = 0.2
        for velocity in model.optimizer.momentums:
            velocity.assign(np.asarray(velocity) * 0.5)
        model.train_on_batch(x[:8], y[:8])
        model.train_on_batch(x[8:], y[8:])
        found["by hand"] = [], [], p.weights(model)
        for wrong in (
            lambda: fit(c.LearningRateScheduleCallback(None, 0.1), 1),
            lambda: fit(c.BestModelCheckpoint(), 1),
        ):
            try:
                wrong()
            except ValueError as error:
                found[str(error)] = [], [], []
        return found

    zero, one = on(backend, 2, train)
    for name, (rates, logged, weights) in zero.items():
        assert (rates, logged) == (one[name][0], one[name][1])
        equal(weights, one[name][2])
    np.testing.assert_allclose(zero["warmup"][0], [0.25, 0.3, 0.35, 0.4, 0.4, 0.4], rtol=1e-6)
    np.testing.assert_allclose(zero["warmup"][1], [0.3, 0.4, 0.4], rtol=1e-6)
    close(zero["momentum"][2], zero["by hand"][2])
    assert "Parameter `initial_lr` is required" in zero
    assert any("BestModelCheckpoint has no filepath" in name for name in zero)
    if every:
        np.testing.assert_allclose(
            zero["within an epoch"][0], [0.4 / 1.5, 0.5 / 1.5, 0.4, 0.4, 0.4, 0.4], rtol=1e-6
        )
        np.testing.assert_allclose(zero["staircase"][0], [0.4, 0.4, 0.2, 0.2, 0.1, 0.1], rtol=1e-6)
        np.testing.assert_allclose(zero["power"][0], [0.4] * 6, rtol=1e-6)
        np.testing.assert_allclose(zero["smooth"][0], [0.4, 0.4 / 1.5], rtol=1e-6)


def test_saving_and_loading(backend: str, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def train(rank: int) -> dict[str, object]:
        import copy

        import keras

        import farandole.keras as hvd
        from farandole.keras.optimizer import gradients_of
        from tests.keras import programs as p

        x, y = p.data(32)
        mine, theirs = hvd.shard(x, y)
        more = {"batch_size": 8, "verbose": 0, "shuffle": False}
        found = {}
        model = p.dense(rank)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.05))
        model.compile(optimizer, p.loss())
        model.fit(mine, theirs, **more)
        for ending in ("keras", "h5"):
            model.save(f"{folder}/{backend}-{rank}.{ending}")
        model.save_weights(f"{folder}/{backend}-{rank}.weights.h5")
        found["config"] = (
            keras.saving.serialize_keras_object(optimizer),
            keras.saving.serialize_keras_object(keras.optimizers.Adam(0.05, name=optimizer.name)),
        )
        plain = keras.models.load_model(f"{folder}/{backend}-{rank}.keras")
        found["plain"] = gradients_of(plain.optimizer) is None, type(plain.optimizer).__name__
        again = hvd.load_model(f"{folder}/{backend}-{rank}.keras")
        found["distributed"] = (
            gradients_of(again.optimizer) is not None,
            type(again.optimizer).__name__,
        )
        weights = p.dense(5)
        weights.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), p.loss())
        weights.optimizer.build(weights.trainable_variables)
        weights.load_weights(f"{folder}/{backend}-{rank}.weights.h5")
        ways = [("went on", model), ("loaded", again), ("weights", weights)]
        for ending in ("keras", "h5"):  # only rank 0 resumes from a file
            resumed = hvd.load_model(f"{folder}/{backend}-0.{ending}") if rank == 0 else p.dense(6)
            if rank:
                resumed.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), p.loss())
            ways.append((f"resumed {ending}", resumed))
        with p.said() as messages:
            for name, each in ways:
                each.fit(mine, theirs, **more)
                found[name] = p.weights(each)
        found["said"] = messages
        plain = keras.models.load_model(f"{folder}/{backend}-0.h5")
        plain.optimizer = hvd.DistributedOptimizer(plain.optimizer)
        with pytest.raises(ValueError, match=mentioning("4", "variables", "model")):
            hvd.broadcast_global_variables(0, plain)
        plain = copy.copy(optimizer)
        found["copy"] = gradients_of(plain) is None, type(plain).__name__
        return found

    zero, one = on(backend, 2, train)
    assert zero["config"][0] == zero["config"][1]
    assert (zero["plain"], zero["distributed"]) == ((True, "Adam"), (True, "Adam"))
    assert zero["copy"] == (True, "Adam")
    assert zero["said"] == []
    for name in ("went on", "loaded", "weights", "resumed keras", "resumed h5"):
        equal(zero[name], one[name])
        close(zero[name], zero["went on"], rtol=1e-5)
    code = (
        "import keras;"
        f" print(type(keras.models.load_model({folder + f'/{backend}-0.keras'!r}).optimizer).__name__)"
    )
    path = os.pathsep.join(each for each in sys.path if not Path(each, "farandole").exists())
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.strip() == "Adam", done.stderr


@pytest.mark.parametrize(("known", "first"), [(3, 0), (3, 3), (0, 3)])
def test_epochs_are_counted_from_the_one_that_fit_begins_with(known: int, first: int) -> None:
    """All ways to resume: with the number of remaining epochs, with the number of the next one, and
    with a new state if BackupAndRestore knows that number.
    """

    def count(rank: int) -> int:
        from types import SimpleNamespace

        from farandole.keras.common_callbacks import UpdateEpochState

        state = SimpleNamespace(epoch=known)
        callback = UpdateEpochState(state)
        callback.on_train_begin()
        for epoch in (first, first + 1):
            callback.on_epoch_begin(epoch)
            callback.on_epoch_end(epoch)
        return state.epoch

    assert on(QUICK, 1, count) == [5]


@pytest.mark.skipif("tensorflow" not in BACKENDS, reason="TensorFlow is not installed")
def test_a_custom_loop_broadcasts_an_unbuilt_model() -> None:
    """After its first step, which creates the weights; also if the model itself is never called."""

    def train(rank: int) -> object:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        weights = []
        for called in (True, False):
            model = p.own_step("tensorflow", called=called)(p.dense(rank))
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
            callbacks = keras.callbacks.CallbackList(
                [hvd.callbacks.BroadcastGlobalVariablesCallback(0)], model=model
            )
            callbacks.on_train_batch_begin(0)
            model.train_step(p.data(4))
            callbacks.on_train_batch_end(0)
            weights += p.weights(model)
        return weights

    zero, one = on("tensorflow", 2, train)
    equal(zero, one)


def test_callbacks_of_a_custom_loop_that_calls_on_batch_end(backend: str) -> None:
    """Programs with ``train_on_batch`` call what Horovod's callbacks override: ``on_batch_begin``
    and ``_end``.
    """

    def train(rank: int) -> object:
        from types import SimpleNamespace

        import keras
        import numpy as np

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(8)
        model = p.dense(rank)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), p.loss())
        state = SimpleNamespace(batch=0, epoch=0, commits=0)
        state.commit = lambda: setattr(state, "commits", state.commits + 1)
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.5),
            hvd.callbacks.UpdateBatchStateCallback(state),
            hvd.callbacks.CommitStateCallback(state),
        ]
        for callback in callbacks:
            callback.set_model(model)
            callback.on_train_begin()
            callback.on_epoch_begin(0)
        for batch in range(2):
            for callback in callbacks[1:]:
                callback.on_batch_begin(batch)
            model.train_on_batch(x[4 * batch : 4 * batch + 4], y[4 * batch : 4 * batch + 4])
            for callback in callbacks:
                callback.on_batch_end(batch)
        rate = float(np.asarray(keras.ops.convert_to_numpy(model.optimizer.learning_rate)))
        return p.weights(model), rate, state.batch, state.commits

    (zero, *found), (one, *_) = on(backend, 2, train)
    equal(zero, one)
    assert found == [pytest.approx(0.05), 2, 2]


def test_values_and_elastic_state(backend: str) -> None:
    def call(rank: int) -> dict[str, object]:
        import keras

        import farandole.keras as hvd
        from farandole.keras.elastic import KerasState
        from tests.keras import programs as p

        array = keras.ops.convert_to_numpy
        found = {
            "allreduce": float(array(hvd.allreduce(1.0 + rank))),
            "sum": array(hvd.allreduce(np.asarray([1.0, rank], "float32"), op=hvd.Sum)).tolist(),
            "allgather": array(hvd.allgather(np.full(1 + rank, rank, "int32"))).tolist(),
            "broadcast": array(hvd.broadcast([rank, 7], 1)).tolist(),
            "reducescatter": array(hvd.reducescatter(np.arange(4.0, dtype="float32"))).tolist(),
        }
        model = p.dense(rank)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), p.loss())
        state = KerasState(model, epoch=rank, batch=3)
        state.sync()
        found["synced"] = p.weights(model), state.epoch
        x, y = p.data(16)
        mine, theirs = hvd.shard(x, y)
        seen = []

        class Look(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: object = None) -> None:
                seen.append(state.batch)

        e = hvd.elastic
        commits = []

        class Counting(e.CommitStateCallback):  # type: ignore[misc,name-defined]
            def commit(self) -> None:
                commits.append(state.epoch)
                super().commit()

        callbacks = [
            e.UpdateBatchStateCallback(state),
            e.UpdateEpochStateCallback(state),
            Counting(state, 2),
        ]
        state.batch = 0
        model.fit(mine, theirs, batch_size=4, epochs=2, verbose=0, callbacks=[*callbacks, Look()])
        found["batches"] = seen, state.batch, state.epoch
        found["commits"] = commits
        kept = p.weights(model)
        model.set_weights([each + 1 for each in kept])
        state.epoch = 9
        state.restore()
        found["restored"] = p.weights(model), kept, state.epoch
        return found

    zero, one = on(backend, 2, call)
    assert zero["allreduce"] == 1.5
    assert zero["sum"] == [2.0, 1.0]
    assert zero["allgather"] == [0, 1, 1]
    assert zero["broadcast"] == [1, 7]
    assert (zero["reducescatter"], one["reducescatter"]) == ([0.0, 1.0], [2.0, 3.0])
    equal(zero["synced"][0], one["synced"][0])
    assert one["synced"][1] == 0
    assert one["batches"] == ([1, 2, 1, 2], 0, 2)
    assert one["commits"] == [0, 1, 1, 2], "at every second batch, and at the end of each epoch"
    for each in (zero, one):
        equal(each["restored"][0], each["restored"][1])
        assert each["restored"][2] == 2


def test_local_variables_and_mistakes(backend: str) -> None:
    def train(rank: int) -> dict[str, object]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)
        mine, theirs = hvd.shard(x, y)
        found = {}
        SGD = keras.optimizers.SGD
        model = p.dense(rank)
        model.compile(
            hvd.PartialDistributedOptimizer(SGD(0.1), local_layers=model.layers[0]), p.loss()
        )
        model.fit(mine, theirs, batch_size=4, verbose=0)
        found["partial"] = p.weights(model)
        optimizer = hvd.DistributedOptimizer(SGD(0.1, momentum=0.9), scale_local_gradients=False)
        model = p.dense(rank)
        optimizer.register_local_var(model.layers[-1].bias)
        model.compile(optimizer, p.loss())
        model.fit(mine, theirs, batch_size=4, verbose=0)
        found["registered"] = p.weights(model)
        texts = []
        for wrong in (
            lambda: hvd.DistributedOptimizer(SGD(0.1), op=hvd.Adasum),
            lambda: hvd.DistributedOptimizer(SGD(0.1), op=hvd.Sum, gradient_predivide_factor=2.0),
            lambda: hvd.DistributedOptimizer(hvd.DistributedOptimizer(SGD(0.1))),
            lambda: hvd.DistributedOptimizer(SGD(0.1), backward_passes_per_step=0),
            lambda: hvd.DistributedOptimizer(SGD(0.1), groups=-1),
            lambda: hvd.PartialDistributedOptimizer(SGD(0.1), local_layers=["dense"]),
            lambda: hvd.shard({1: object()}),
            lambda: hvd.broadcast_global_variables(0),
            lambda: hvd.DistributedOptimizer(
                type("Adam", (), {"__module__": "tf_keras.optimizers"})()
            ),
        ):
            try:
                wrong()
            except ValueError as error:
                texts.append(str(error))
        found["texts"] = texts
        return found

    zero, one = on(backend, 2, train)
    for name, shared in (("partial", [2, 3]), ("registered", [0, 1, 2])):
        for number, (a, b) in enumerate(zip(zero[name], one[name], strict=True)):
            assert np.array_equal(a, b) == (number in shared), (name, number)
    expected = [
        "op currently only supports Average and Sum",
        "gradient_predivide_factor not supported with op != Average",
        "already distributed",
        "must be > 0",
        "groups should be a non-negative integer",
        "All local layers must be of tf.keras.layers.Layer type.",
        "cannot be divided",
        "Pass the model",
        "Adam is an optimizer of Keras 2 (tf_keras)",
    ]
    assert len(zero["texts"]) == len(expected)
    for text, part in zip(zero["texts"], expected, strict=True):
        assert part in text


def test_scaled_losses_skip_steps_on_all_ranks(backend: str) -> None:
    """A non-finite gradient on one rank: all skip the step and halve the scale; mixed precision,
    too.
    """

    def train(rank: int) -> dict[str, object]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)
        mine, theirs = hvd.shard(x, y)
        broken = mine.copy()
        if rank == 1:
            broken[0] = np.inf
        found = {}
        model = p.dense(0)
        begin = p.weights(model)
        scaled = keras.optimizers.LossScaleOptimizer(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
            initial_scale=64.0,
            dynamic_growth_steps=100,
        )
        model.compile(scaled, p.loss())
        model.fit(broken, theirs, batch_size=8, verbose=0, shuffle=False)
        found["skipped"] = p.weights(model), begin, float(np.asarray(scaled.dynamic_scale.numpy()))
        model.fit(mine, theirs, batch_size=4, verbose=0, shuffle=False)
        found["went on"] = p.weights(model), begin, float(np.asarray(scaled.dynamic_scale.numpy()))
        local, shared = (keras.Variable(np.ones(3, np.float32)) for _ in range(2))
        inner = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        inner.register_local_var(local)
        scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0)
        scaled.build([local, shared])
        for value in (np.inf if rank == 1 else 64.0, 64.0):
            grads = [keras.ops.full((3,), value), keras.ops.full((3,), 64.0 * (1 + 2 * rank))]
            if keras.backend.backend() != "jax":
                scaled.apply(grads)
                continue
            held = [local, shared], scaled.variables
            results = scaled.stateless_apply(
                [v.value for v in held[1]], grads, [v.value for v in held[0]]
            )
            for variables, values in zip(held, results, strict=True):
                for variable, result in zip(variables, values, strict=True):
                    variable.assign(result)
        found["local"] = keras.ops.convert_to_numpy(local), keras.ops.convert_to_numpy(shared)
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = p.dense(rank)
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), p.loss())
            found["kind"] = type(model.optimizer).__name__
            model.fit(mine, theirs, batch_size=4, verbose=0, shuffle=False)
            found["mixed"] = p.weights(model)
        finally:
            keras.config.set_dtype_policy("float32")
        return found

    zero, one = on(backend, 2, train)
    for each in (zero, one):
        equal(each["skipped"][0], each["skipped"][1])
        assert each["skipped"][2] == 32.0
        assert not np.array_equal(each["went on"][0][0], each["went on"][1][0])
        assert each["kind"] == "LossScaleOptimizer"
        # of the two steps the second counts, with half the scale
        np.testing.assert_allclose(each["local"], [[0.9] * 3, [0.6] * 3], rtol=1e-6)
    equal(zero["went on"][0], one["went on"][0])
    equal(zero["mixed"], one["mixed"])
