"""Optimizers whose ranks exchange weights at intervals, on every backend: in fit, with several
passes, by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.keras.backends import QUICK, on
from tests.keras.test_training import close, equal
from tests.kits.messages import mentioning


def test_local_sgd_is_its_model(backend: str) -> None:
    """Ranks with different data; in one process, models that take turns are the reference."""

    def train(rank: int) -> dict[str, list[np.ndarray]]:
        import keras

        import farandole.keras as hvd
        from farandole.strategies.modes.local_sgd import LocalSGD
        from tests.keras import programs as p

        x, y = p.words(48)
        mine = slice(rank * 24, rank * 24 + 24)
        found = {}
        kinds: dict[str, tuple[Any, dict[str, Any]]] = {
            "plain": ("local_sgd:2", {}),
            "outer": (LocalSGD(3, outer="nesterov", lr=0.7, momentum=0.5), {"codec": "topk:1"}),
            "passes": (
                LocalSGD(1, outer="nesterov", lr=0.5, momentum=0.25),
                {"backward_passes_per_step": 2, "average_aggregated_gradients": True},
            ),
        }
        for name, (strategy, options) in kinds.items():
            model = p.embedding(rank)
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.Adam(0.02), strategy=strategy, **options
            )
            model.compile(optimizer, p.loss())
            model.fit(x[mine], y[mine], batch_size=4, epochs=1, shuffle=False, verbose=0)
            found[name] = p.weights(model)
        return found

    one, two = on(backend, 2, train)
    assert len(one) == 3
    for name, weights in one.items():
        equal(weights, two[name])
    model = on(backend, 1, lambda rank: _alone())[0]
    for name, weights in one.items():
        print(name)
        close(weights, model[name])


def _alone() -> dict[str, list[np.ndarray]]:
    import keras

    from tests.keras import programs as p

    x, y = p.words(48)
    found = {}
    for name, every, passes, rate, momentum in (
        ("plain", 2, 1, 1.0, 0.0),
        ("outer", 3, 1, 0.7, 0.5),
        ("passes", 1, 2, 0.5, 0.25),
    ):
        models = [p.embedding(0) for _ in range(2)]
        for model in models:
            steps = {"gradient_accumulation_steps": passes} if passes > 1 else {}
            model.compile(keras.optimizers.Adam(0.02, **steps), p.loss())
        anchor = p.weights(models[0])
        velocity = [np.zeros_like(weight) for weight in anchor]
        for batch in range(6):
            for rank, model in enumerate(models):
                rows = slice(rank * 24 + 4 * batch, rank * 24 + 4 * batch + 4)
                model.train_on_batch(x[rows], y[rows])
            if (batch + 1) % (every * passes) == 0:
                mean = [(one + two) / 2 for one, two in zip(*map(p.weights, models), strict=True)]
                way = [old - new for old, new in zip(anchor, mean, strict=True)]
                velocity = [momentum * kept + new for kept, new in zip(velocity, way, strict=True)]
                pairs = zip(anchor, way, velocity, strict=True)
                mean = anchor = [old - rate * (new + momentum * kept) for old, new, kept in pairs]
                for model in models:
                    model.set_weights(mean)
        found[name] = [(one + two) / 2 for one, two in zip(*map(p.weights, models), strict=True)]
    return found


def _own_loop(rank: int) -> None:
    """Train without ``fit``: report epochs to the strategy, and save its state."""
    import keras

    import farandole.keras as hvd
    from farandole.strategies import LocalSGD

    def stepped(optimizer: Any, variable: Any, count: int) -> Any:
        for _ in range(count):
            optimizer.apply([keras.ops.array([rank + 1.0])], [variable])
        return np.array(variable).tolist()

    def begun(strategy: Any, **options: Any) -> tuple[Any, Any]:
        variable = keras.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0, **options), strategy=strategy
        )
        optimizer.build([variable])
        return optimizer, variable

    optimizer, variable = begun("local_sgd:epoch")
    for average in (optimizer.end_of_epoch, optimizer.average_weights):
        mean = np.array(variable) - 1.5
        assert stepped(optimizer, variable, 1) == [mean[0] + 0.5 - rank]
        average()
        assert np.array(variable) == mean
    optimizer, variable = begun("local_sgd:epoch", gradient_accumulation_steps=2)
    for passes, own, mean in ((2, -1.0 - rank, -1.5), (1, -1.5, -1.5), (1, -2.5 - rank, -3.0)):
        assert stepped(optimizer, variable, passes) == [own]
        # the second epoch ends in the middle of a step, which continues in the third
        optimizer.end_of_epoch()
        assert np.array(variable).tolist() == [mean]
    ends = []
    for resumed in (False, True):
        optimizer, variable = begun(LocalSGD(2, outer="nesterov", lr=0.7))
        stepped(optimizer, variable, 3)
        if resumed:
            state, steps, weights = optimizer.state_dict(), optimizer.iterations, variable
            optimizer, variable = begun(LocalSGD(2, outer="nesterov", lr=0.7))
            variable.assign(weights)
            optimizer.iterations.assign(steps)
            optimizer.load_state_dict(state)
        ends.append(stepped(optimizer, variable, 3))
    assert ends[0] == ends[1]
    with pytest.raises(
        ValueError,
        match=mentioning("local_sgd:2", "outer=nesterov", "'local_sgd:2'"),
    ):
        begun(LocalSGD(2))[0].load_state_dict(optimizer.state_dict())


def test_weights_are_averaged_before_the_first_step_too(backend: str) -> None:
    """Ranks may have loaded different weights from files, and evaluate them."""

    def fn(rank: int) -> None:
        import keras

        import farandole.keras as hvd

        # after two steps of rank 1 along -1; easgd goes 0.45 of the way back to its centre
        for strategy, first, last in (("local_sgd:2", 0.5, -0.5), ("easgd:2", 0.5, -0.05)):
            variable = keras.Variable([float(rank)], name="v")
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), strategy=strategy)
            optimizer.average_weights()  # knows no variables yet
            optimizer.build([variable])
            optimizer.average_weights()
            assert np.allclose(keras.ops.convert_to_numpy(variable), first)
            for _ in range(2):
                optimizer.apply([keras.ops.convert_to_tensor([float(rank)])], [variable])
            optimizer.average_weights()
            assert np.allclose(keras.ops.convert_to_numpy(variable), last)

    on(backend, 2, fn)


def test_epochs_local_variables_and_what_cannot_be() -> None:
    def train(rank: int) -> None:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)
        model = p.dense(0)
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1), strategy="local_sgd:epoch", shard=True
        )
        optimizer.register_local_var(model.trainable_variables[-1])
        model.compile(optimizer, p.loss())
        seen: list[Any] = []

        class Look(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                seen.append(
                    hvd.allgather(np.stack([w.ravel()[:1] for w in p.weights(model)])[None])
                )

        model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[Look()])
        for epoch in seen:
            assert np.array_equal(epoch[0][:-1], epoch[1][:-1]), "exchanged at the end of the epoch"
            assert not np.array_equal(epoch[0][-1], epoch[1][-1]), "left to each rank"
        _own_loop(rank)
        with pytest.raises(ValueError, match=mentioning("LossScaleOptimizer")):
            hvd.DistributedOptimizer(
                keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
                strategy="local_sgd:2",
            )
        keras.config.set_dtype_policy("mixed_float16")  # Keras puts one around
        try:
            model = p.dense(0)
            model.compile(
                hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), strategy="bmuf:2"), p.loss()
            )
            with pytest.raises(ValueError, match=mentioning("LossScaleOptimizer")):
                model.fit(x, y, batch_size=4, verbose=0)
        finally:
            keras.config.set_dtype_policy("float32")
        with pytest.raises(
            ValueError, match=mentioning("use_ema=True", "strategy='ssp:3,every=1'")
        ):
            hvd.DistributedOptimizer(keras.optimizers.SGD(use_ema=True), strategy="ssp")
        hvd.DistributedOptimizer(keras.optimizers.SGD(use_ema=True), strategy="ps")
        with pytest.raises(ValueError, match=mentioning("op=Sum", "gradients")):
            hvd.DistributedOptimizer("sgd", op=hvd.Sum, strategy="diloco")

    on(QUICK, 2, train)


def test_variables_without_gradients_in_some_steps(backend: str) -> None:
    """Variables take part in an exchange if a step since the last one had a gradient. Their state
    is separate, and a frozen variable has no momentum.
    """

    def train(rank: int) -> None:
        import keras

        import farandole.keras as hvd
        from farandole.strategies import LocalSGD

        plain = [("a",), ("b",), ("b",), ("b",), ("a", "b"), ("a",)]
        outer = [("a", "b"), ("a", "b"), ("a",), ("a",), ("b",), ("b",)]
        for strategy, steps, ends in (
            ("local_sgd:2", plain, [-4.5, -6.0]),
            (LocalSGD(2, outer="momentum", lr=1.0, momentum=0.5), outer, [-7.5, -7.5]),
        ):
            variables = [keras.Variable([0.0], name="a"), keras.Variable([0.0], name="b")]
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), strategy=strategy)
            optimizer.build(variables)
            gradient = keras.ops.array([rank + 1.0])
            for names in steps:
                optimizer.apply(
                    [gradient if name in names else None for name in ("a", "b")], variables
                )
            assert [float(np.array(variable)[0]) for variable in variables] == ends

    on(backend, 2, train)


def test_the_decay_of_the_first_step_is_a_part_of_it(backend: str) -> None:
    """The way from the first weights to the mean is the first step of outer momentum: 8, 8 - 4 - 1,
    then further by half.
    """

    def train(rank: int) -> None:
        import keras

        import farandole.keras as hvd
        from farandole.strategies import BMUF

        variable = keras.Variable([8.0])
        plain = keras.optimizers.SGD(1.0, weight_decay=0.5)
        optimizer = hvd.DistributedOptimizer(plain, strategy=BMUF(1, momentum=0.5))
        optimizer.build([variable])
        for end in (3.0, 1.5 - 1.0 - 2.5):
            optimizer.apply([keras.ops.array([rank + 0.5])], [variable])
            np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), [end], rtol=1e-5)

    on(backend, 2, train)


def test_synchronous_parameter_servers_average_gradients(backend: str) -> None:
    """In fit, at whose end all ranks get the centre; and background gossip, at whose end they get
    the mean.
    """

    def train(rank: int) -> list[list[np.ndarray]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)
        found = []
        for spec in (
            "ps",
            "allreduce",
            "ps_async:2",
            "gossip_async:every=2",
            "ps threshold:1e-30",
            "ps_async onebit",
            "gossip:complete,gamma=1 topk:1",
        ):
            strategy, _, codec = spec.partition(" ")
            model = p.dense(0)
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(0.1), strategy=strategy, codec=codec
            )
            model.compile(optimizer, p.loss())
            mine = slice(8 * rank, 8 * rank + 8)
            model.fit(x[mine], y[mine], batch_size=4, epochs=2, shuffle=False, verbose=0)
            found.append(p.weights(model))
        variable = keras.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), strategy="gossip_async")
        optimizer.build([variable])
        for _ in range(3 + 4 * rank):
            optimizer.apply([keras.ops.array([rank + 1.0])], [variable])
        optimizer.average_weights()
        found.append([np.array(variable)])
        return found

    one, two = on(backend, 2, train, store=True)
    for first, second in zip(one, two, strict=True):
        equal(first, second)
    close(one[0], one[1])
    close(one[4], one[1])
    close(one[6], one[1])
    close(one[-1], [np.array([-(3 + 14) / 2])])  # what both have learned


def test_restored_best_weights_are_not_pushed(backend: str) -> None:
    """The restored weights, the mean of all ranks', count, and training continues from them."""

    def train(rank: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16, seed=rank)
        found = []
        for strategy in ("ps_async:2", "ps:3", "gossip_async", "diloco:3"):
            model = p.dense(0)
            model.compile(
                hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), strategy=strategy), p.loss()
            )
            best: list[np.ndarray] = []

            class Worse(keras.callbacks.Callback):
                def on_epoch_end(
                    self, epoch: int, logs: Any = None, best: list[np.ndarray] = best
                ) -> None:
                    logs["score"] = epoch
                    best.append(p.weights(self.model)[0])

            stop = keras.callbacks.EarlyStopping(
                "score", mode="min", patience=4, restore_best_weights=True
            )
            model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[Worse(), stop])
            end = p.weights(model)[0]
            model.fit(x, y, batch_size=4, epochs=2, verbose=0)
            found.append((best[0], end, p.weights(model)[0]))
        return found

    for (best, end, on_from), (theirs, other, then) in zip(
        *on(backend, 2, train, store=True), strict=True
    ):
        np.testing.assert_array_equal(end, other)
        np.testing.assert_allclose(end, (best + theirs) / 2, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(on_from, then)
        assert 0 < np.abs(on_from - end).max() < 0.5


def test_a_rank_with_fewer_batches_holds_up_no_server(backend: str) -> None:
    """In ``fit`` the rank waits for the others, which continue without it; all begin the next epoch
    together.
    """

    def train(rank: int) -> list[list[np.ndarray]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16 + 8 * rank, seed=rank)
        found = []
        for strategy in ("ps", "ssp:0"):
            model = p.dense(0)
            model.compile(
                hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), strategy=strategy), p.loss()
            )
            model.fit(x, y, batch_size=4, epochs=2, verbose=0)
            assert int(np.array(model.optimizer.iterations)) == 12, "those of the rank with more"
            found.append(p.weights(model))
        return found

    for first, second in zip(*on(backend, 2, train, store=True, deadline=60.0), strict=True):
        equal(first, second)
