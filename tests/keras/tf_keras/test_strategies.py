"""Models of Keras 2 whose ranks exchange weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.strategies import LocalSGD
from tests.keras.tf_keras.models import BATCH, OPTIMIZERS, STEPS, data, gan, make
from tests.kits.messages import mentioning
from tests.run_job import job

pytest.importorskip("tf_keras", reason="tf_keras is not installed")


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
    turns are the reference.
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
    """With a strategy without state, and with one that has state."""

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


def test_keras_2_normalization_is_equal_on_all_ranks() -> None:
    """Each rank has adapted its layer to its own rows, and Keras has compiled the result."""

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
