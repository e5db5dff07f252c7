"""Metrics, counts and losses of fit cover the samples of all ranks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.keras.backends import QUICK, on
from tests.kits.messages import mentions


def test_metrics_are_those_of_all_samples(backend: str) -> None:
    """Uneven ranks, an uneven last batch, an AUC, a score per class: the numbers of one process, up
    to rounding.
    """

    def train(rank: int) -> object:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(37, classes=2)
        y = np.stack([y, 1 - y], axis=1).astype("float32")
        slow = lambda: keras.optimizers.SGD(1e-12)  # noqa: E731

        def build(optimizer: object) -> object:
            keras.utils.set_random_seed(0)
            model = keras.Sequential(
                [keras.Input((6,)), keras.layers.Dense(2, activation="sigmoid")]
            )
            metrics = [
                "accuracy",
                keras.metrics.AUC(name="auc"),
                keras.metrics.F1Score(threshold=0.5),
            ]
            model.compile(optimizer, "binary_crossentropy", metrics=metrics)
            return model

        one = build(slow())
        alone = one.fit(x, y, batch_size=8, verbose=0, validation_data=(x[:21], y[:21])).history
        part = slice(0, 13) if rank == 0 else slice(13, 37)
        val = slice(0, 5) if rank == 0 else slice(5, 21)
        two = build(hvd.DistributedOptimizer(slow()))
        with p.said() as said:
            mine = two.fit(
                x[part],
                y[part],
                batch_size=8,
                verbose=0,
                validation_data=(x[val], y[val]),
                callbacks=[hvd.callbacks.MetricAverageCallback()],
            ).history
        assert {np.shape(score) for score in mine["f1_score"] + mine["val_f1_score"]} == {(2,)}
        return alone, {name: np.array(values).tolist() for name, values in mine.items()}, said

    (alone, mine, said), (_, other, _) = on(backend, 2, train)
    assert mine == other
    assert sorted(mine) == sorted(alone)
    for name, values in alone.items():
        np.testing.assert_allclose(mine[name], values, rtol=1e-4, err_msg=name)
    assert any(mentions(each, "(2, 3)", "numbers") for each in said)


def test_counts_are_those_of_all_samples(backend: str) -> None:
    """On PyTorch the result of such a metric is a view of its variable, which is overwritten
    later.
    """

    def train(rank: int) -> list[float]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(40, classes=2)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, activation="sigmoid")])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard=True)
        model.compile(
            optimizer,
            "binary_crossentropy",
            metrics=[keras.metrics.TruePositives(0.0, name="ones")],
        )
        y = y.reshape(-1, 1)
        plain = model.fit(x, y, batch_size=10, verbose=0).history["ones"]
        validated = model.fit(
            x, y, batch_size=10, verbose=0, validation_data=(x[:8], y[:8])
        ).history
        return [
            *plain,
            *validated["ones"],
            *validated["val_ones"],
            float(y.sum()),
            float(y[:8].sum()),
        ]

    for plain, training, validation, ones, first in on(backend, 2, train):
        assert (plain, training) == (ones, ones)
        assert validation == first


def test_losses_of_outputs_are_those_of_all_samples(backend: str) -> None:
    """On TensorFlow, Keras counts samples if all batches have one size, otherwise batches."""

    def train(rank: int) -> dict[str, float]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, _ = p.data(31)
        y = {"a": 3 * x[:, :1], "b": x[:, 1:2]}
        inputs = keras.Input((6,))
        outputs = {
            name: keras.layers.Dense(1, kernel_initializer="zeros", name=name)(inputs) for name in y
        }
        model = keras.Model(inputs, outputs)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), dict.fromkeys(y, "mse"))
        part = slice(0, 16) if rank == 0 else slice(16, 31)
        mine = x[part], {name: values[part] for name, values in y.items()}
        history = model.fit(*mine, batch_size=8, verbose=0, validation_data=mine).history
        # old Keras: none
        names = [f"{prefix}{name}" for prefix in ("", "val_") for name in y if "a_loss" in history]
        return {
            name: history[f"{name}_loss"][0] / float((y[name[-1]] ** 2).mean()) for name in names
        }

    for found in on(backend, 2, train):
        # the mean of batches is a little different
        np.testing.assert_allclose(list(found.values()), 1.0, rtol=0.05)


def test_all_ranks_know_what_one_of_them_validates() -> None:
    pytest.importorskip("keras")

    def train(rank: int) -> dict[str, list[float]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)
        model = p.dense(0)
        model.compile(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), p.loss(), metrics=["accuracy"]
        )
        lower = keras.callbacks.ReduceLROnPlateau(
            monitor="val_loss", factor=0.5, patience=1, min_delta=100.0
        )
        return model.fit(
            *hvd.shard(x, y),
            batch_size=4,
            epochs=3,
            verbose=0,
            callbacks=[lower],
            validation_data=(x[:5], y[:5]) if rank == 0 else None,
        ).history

    zero, one = on(QUICK, 2, train)
    assert zero == one
    assert zero["learning_rate"][-1] < zero["learning_rate"][0]
    assert {"val_loss", "val_accuracy"} <= zero.keys()


def test_one_batch_to_validate_on_two_ranks(backend: str) -> None:
    """Keras refuses a PyDataset without batches, which the second rank would get."""

    def train(rank: int) -> dict[str, list[float]]:
        import importlib.util

        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)

        class Batches(keras.utils.PyDataset):
            def __len__(self) -> int:
                return 1

            def __getitem__(self, index: int) -> object:
                return x[:8], y[:8]

        kinds = {"PyDataset": Batches()}
        if importlib.util.find_spec("tensorflow"):
            import tensorflow as tf

            kinds["tf.data"] = tf.data.Dataset.from_tensor_slices((x[:8], y[:8])).batch(8)
        found = {}
        for name, data in kinds.items():
            model = p.dense(0)
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard=True), p.loss())
            history = model.fit(
                x, y, batch_size=4, epochs=2, verbose=0, validation_data=data
            ).history
            found[name] = history["val_loss"]
            np.testing.assert_allclose(
                history["val_loss"][-1], model.evaluate(x[:8], y[:8], verbose=0), rtol=1e-5
            )
        return found

    zero, one = on(backend, 2, train)
    assert zero == one
    assert "PyDataset" in zero


def test_validation_uses_the_averaged_model(backend: str) -> None:
    """With the mean of the moving averages, and the weights of the rank with most steps, as in a
    checkpoint. One rank alone validates at the end.
    """

    def train(rank: int) -> list[tuple[float, float]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(48)
        found = []
        for mine, validates in (
            (slice(rank, None, 2), True),
            (slice(16) if rank else slice(16, 48), True),
            (slice(rank, None, 2), rank == 1),
        ):
            keras.utils.set_random_seed(0)
            layers = [
                keras.layers.Dense(8),
                keras.layers.BatchNormalization(momentum=0.1),
                keras.layers.Dense(3),
            ]
            model = keras.Sequential([keras.Input((6,)), *layers])
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.3)), p.loss())
            options = {"validation_data": (x[:20], y[:20])} if validates else {}
            history = model.fit(
                x[mine], y[mine], batch_size=8, epochs=2, verbose=0, **options
            ).history
            found.append(
                (history["val_loss"][-1], float(model.evaluate(x[:20], y[:20], verbose=0)))
            )
        return found

    zero, one = on(backend, 2, train)
    assert [seen for seen, _ in zero] == [seen for seen, _ in one]
    for seen, again in zero + one:
        np.testing.assert_allclose(seen, again, rtol=1e-5)
