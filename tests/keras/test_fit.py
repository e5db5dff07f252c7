"""What fit does for ranks: metrics of all, decisions alike, nobody left waiting, and a word when
something is wrong.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.keras.backends import BACKENDS, QUICK, on
from tests.keras.test_training import close, equal
from tests.kits.messages import mentions


def test_metrics_are_those_of_all_samples(backend: str) -> None:
    """Uneven ranks, an uneven last batch, an AUC, a score of each class: the same numbers as one
    process has, to rounding.
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
    """On TensorFlow, Keras counts samples where all batches are of one size, and else batches."""

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
    """Keras takes no PyDataset without batches, which is what is left for the second rank."""

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


def test_ranks_stop_together(backend: str, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def train(rank: int) -> dict[str, object]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        callbacks = keras.callbacks
        x, y = p.data(32)
        mine, theirs = hvd.shard(x, y)
        noise = np.random.default_rng(rank).integers(0, 3, 16).astype("int32")
        found = {}

        def fit(
            name: str, *users: object, labels: object = theirs, epochs: int = 6, rate: float = 0.5
        ) -> None:
            model = p.dense(rank)
            model.compile(
                hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), p.loss(), metrics=["accuracy"]
            )
            history = model.fit(
                mine,
                labels,
                batch_size=8,
                epochs=epochs,
                verbose=0,
                callbacks=list(users),
                validation_data=(mine, noise),
            )
            found[name] = (
                len(history.epoch),
                p.weights(model),
                float(np.asarray(model.optimizer.learning_rate)),
            )

        early = callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
        fit("early", early)
        fit(
            "plateau",
            callbacks.ReduceLROnPlateau("val_loss", factor=0.1, patience=1, min_delta=0.01),
        )

        class Impatient(callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: object = None) -> None:
                if rank == 1:
                    self.model.stop_training = True

        class Unlucky(callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: object = None) -> None:
                if rank == 1 and epoch == 1:
                    self.model.stop_training = True

        fit("impatient", Impatient())
        fit("unlucky", Unlucky())
        path = f"{folder}/best-{backend}.keras"
        best = callbacks.ModelCheckpoint(path, monitor="val_loss", save_best_only=True)
        fit("checkpoint", best, epochs=3)
        found["best"] = 0, [np.asarray([best.best])], float(os.path.exists(path))
        logger = callbacks.CSVLogger(f"{folder}/log-{backend}.csv", append=True)
        for _ in range(2):
            fit("csv", logger, epochs=2)
        assert logger.filename == f"{folder}/log-{backend}.csv"
        broken = mine.copy()
        if rank == 1:
            broken[:] = np.nan
        model = p.dense(0)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), p.loss())
        history = model.fit(
            broken,
            theirs,
            batch_size=8,
            epochs=3,
            verbose=0,
            callbacks=[callbacks.TerminateOnNaN()],
        )
        found["nan"] = len(history.epoch), [], 0.0
        return found

    zero, one = on(backend, 2, train)
    for name, (epochs, weights, rate) in zero.items():
        print(name, epochs, rate)
        assert (epochs, rate) == (one[name][0], one[name][2])
        equal(weights, one[name][1])
    assert zero["early"][0] < 6
    assert zero["plateau"][2] < 0.5
    assert zero["impatient"][0] == 1
    assert zero["unlucky"][0] == 2
    assert zero["best"][2] == 1.0
    assert zero["nan"][0] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"best-{backend}.keras",
        f"log-{backend}.csv",
    ]
    rows = (tmp_path / f"log-{backend}.csv").read_text().splitlines()
    # each epoch once
    assert [row.partition(",")[0] for row in rows] == ["epoch", "0", "1", "0", "1"]


def test_a_last_digit_that_differs_between_ranks_is_everybodys(backend: str) -> None:
    """GPUs, and processors of two kinds, add up in another order. Callbacks must decide alike all
    the same.
    """

    def train(rank: int) -> object:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        class Digits(keras.metrics.SparseCategoricalAccuracy):
            def result(self) -> object:
                return super().result() * (1 + 1e-6 * rank)

        seen = []
        for callbacks in ([], [hvd.callbacks.MetricAverageCallback()]):
            model = p.dense(0)
            model.compile(
                hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
                p.loss(),
                metrics=[Digits(name="it")],
            )
            log = keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: seen.append(dict(logs))
            )
            x, y = p.data(32)
            part = slice(rank * 16, rank * 16 + 16)
            model.fit(
                x[part],
                y[part],
                batch_size=8,
                epochs=2,
                verbose=0,
                validation_data=(x[part], y[part]),
                callbacks=[*callbacks, log],
            )
        return seen

    one, two = on(backend, 2, train)
    assert one == two
    assert {"it", "val_it"} <= set(one[0])


def test_what_is_wrong_is_said(backend: str) -> None:
    def train(rank: int) -> dict[str, object]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(32)
        mine, theirs = hvd.shard(x, y)
        found = {}

        def fit(name: str, optimizer: object, x: object, y: object, **options: object) -> None:
            model = p.dense(options.pop("seed", rank))
            model.compile(optimizer, p.loss())
            with p.said() as said:
                try:
                    model.fit(x, y, batch_size=8, verbose=0, shuffle=False, **options)
                except ValueError as error:
                    said.append(str(error))
            found[name] = said

        wrap = hvd.DistributedOptimizer
        SGD = keras.optimizers.SGD
        fit("fine", wrap(SGD(0.1)), mine, theirs)
        fit("plain", SGD(0.1), mine, theirs)
        fit("plain again", SGD(0.1), mine, theirs)
        fit(
            "plain with callback",
            SGD(0.1),
            mine,
            theirs,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        )
        fit("same arrays", wrap(SGD(0.1)), x, y)
        fit("epochs", wrap(SGD(0.1)), mine, theirs, epochs=1 + rank)
        fit("shards", wrap(SGD(0.1), shard=True), x, y)
        fit("shards of shards", wrap(SGD(0.1), shard=True), mine, theirs)

        def batches() -> object:
            for begin in range(0, 32, 8):
                yield x[begin : begin + 8], y[begin : begin + 8]

        model = p.dense(0)
        model.compile(wrap(SGD(0.1)), p.loss())
        with p.said() as said:
            model.fit(batches(), steps_per_epoch=4, verbose=0)
        found["same batches"] = said
        model = p.dense(rank)
        model.compile(wrap(SGD(0.1)), p.loss())
        with p.said() as said:
            for begin in (0, 8):  # what differs at first may be broadcast after the first step
                model.train_on_batch(mine[begin : begin + 8], theirs[begin : begin + 8])
        found["no broadcast"] = said
        model = p.dense(0) if rank == 0 else p.embedding(0)
        try:
            hvd.broadcast_global_variables(0, model)
        except ValueError as error:
            found["other model"] = [str(error)]
        return found

    zero, one = on(backend, 2, train)
    says = {
        "plain": (
            "exchanged nothing, so the 2 ranks of this job train 2 models apart, or the same one 2"
            " times if all"
        ),
        "plain with callback": (
            "SGD does not exchange gradients: compile with hvd.DistributedOptimizer"
        ),
        "same arrays": "were given the same arrays",
        "shards of shards": (
            "the ranks were given different arrays, and with shard=True fit deals out those that"
        ),
        "same batches": "computed the same gradients",
        "epochs": "epochs must be the same on all ranks, but they have [1, 2]",
        "no broadcast": "began to train with different weights",
        "other model": (
            "the same variables in the same order, but rank 0 has 4, rank 1 has 3; only rank"
        ),
    }
    assert {name: said for name, said in zero.items() if name not in says} == {
        "fine": [],
        "plain again": [],
        "shards": [],
    }
    for name, text in says.items():
        assert len(zero[name]) == 1, (name, zero[name])
        assert text in zero[name][0], (name, zero[name])
    assert {name for name, said in one.items() if said} == {"epochs", "other model"}


def test_every_kind_of_data_is_dealt(backend: str) -> None:
    """Arrays, dictionaries, tf.data, PyDatasets, torch DataLoaders and generators give what one
    process computes.
    """

    def train(rank: int) -> dict[str, object]:
        import importlib.util

        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(32)

        class Batches(keras.utils.PyDataset):
            def __len__(self) -> int:
                return 4

            def __getitem__(self, index: int) -> object:
                return x[index * 8 : index * 8 + 8], y[index * 8 : index * 8 + 8]

        def generator() -> object:
            while True:
                for index in range(4):
                    yield x[index * 8 : index * 8 + 8], y[index * 8 : index * 8 + 8]

        kinds = {"PyDataset": (Batches,), "generator": (generator, None, {"steps_per_epoch": 2})}
        if importlib.util.find_spec("tensorflow"):
            import tensorflow as tf

            kinds["tf.data"] = (lambda: tf.data.Dataset.from_tensor_slices((x, y)).batch(8),)
        if importlib.util.find_spec("torch"):
            import torch

            pairs = list(zip(torch.tensor(x), torch.tensor(y), strict=True))
            kinds["DataLoader"] = (lambda: torch.utils.data.DataLoader(pairs, batch_size=8),)
            if keras.backend.backend() == "torch":
                kinds["shuffled"] = (
                    lambda: torch.utils.data.DataLoader(pairs, batch_size=8, shuffle=True),
                )
        found = {}
        for name, (make, *rest) in kinds.items():
            model = p.dense(rank)
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard=True), p.loss())
            history = model.fit(
                make(), epochs=2, verbose=0, shuffle=False, **(rest[1] if rest else {})
            )
            found[name] = p.weights(model), history.history["loss"]
        model = p.dense(0)
        model.compile(keras.optimizers.SGD(0.1), p.loss())
        order = [0, 1, 2, 3] if rank == 0 else []
        for _ in range(2):
            for first in order[::2]:
                model.train_on_batch(x[first * 8 : first * 8 + 16], y[first * 8 : first * 8 + 16])
        found["one process"] = p.weights(model), []
        return found

    zero, one = on(backend, 2, train)
    alone = zero.pop("one process")[0]
    for name, (weights, losses) in zero.items():
        print(name)
        equal(weights, one[name][0])
        assert losses == one[name][1]
        # not the generator: old Keras loses its first batch on JAX
        if name in ("PyDataset", "tf.data"):
            close(weights, alone)
    assert {"PyDataset", "generator"} <= zero.keys()


def test_shards() -> None:
    pytest.importorskip("keras")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")

    def deal(rank: int) -> object:
        import farandole.keras as hvd

        x = np.arange(7)
        return (
            hvd.shard(x).tolist(),
            hvd.shard(x, even=False).tolist(),
            [each.tolist() for each in hvd.shard(x, x + 10)],
            {name: each.tolist() for name, each in hvd.shard({"a": x, "b": -x}).items()},
            hvd.shard(x[:1]).tolist(),
        )

    results = on(os.environ["KERAS_BACKEND"], 3, deal)
    assert [each[0] for each in results] == [[0, 3, 6], [1, 4, 0], [2, 5, 1]]
    assert [each[1] for each in results] == [[0, 3, 6], [1, 4], [2, 5]]
    assert results[1][2] == [[1, 4, 0], [11, 14, 10]]
    assert results[2][3] == {"a": [2, 5, 1], "b": [-2, -5, -1]}
    assert [each[4] for each in results] == [[0]] * 3


def test_validation_split_takes_the_rows_that_one_process_takes() -> None:
    """Also where ranks do not divide the rows: those that fill up parts, and are trained with, are
    not validated.
    """
    pytest.importorskip("keras")

    def train(rank: int) -> object:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(63)
        found = []
        for wrapped, rows in ((True, {"x": x}), (True, x), (False, x)):
            inputs = keras.Input((6,), name="x")
            keras.utils.set_random_seed(0)
            model = keras.Model(
                {"x": inputs} if isinstance(rows, dict) else inputs, keras.layers.Dense(3)(inputs)
            )
            plain = keras.optimizers.SGD(0.0)
            optimizer = hvd.DistributedOptimizer(plain, shard=True) if wrapped else plain
            model.compile(optimizer, p.loss(), metrics=["accuracy"])
            weight = np.arange(63, dtype="float32")
            options = {
                "validation_split": 0.3,
                "sample_weight": weight,
                "batch_size": 8,
                "verbose": 0,
            }
            history = model.fit(rows, y, **options).history
            found.append((history["val_loss"][0], history["val_accuracy"][0]))
        return found

    for dealt_dict, dealt, alone in on(QUICK, 2, train):
        np.testing.assert_allclose(dealt, alone, rtol=1e-5)
        np.testing.assert_allclose(dealt_dict, alone, rtol=1e-5)


def test_batch_normalization_that_is_not_synchronized_is_told() -> None:
    pytest.importorskip("keras")
    pytest.importorskip("tensorflow")

    def train(rank: int) -> list[list[str]]:
        import keras

        import farandole.keras as hvd
        from farandole.tensorflow import SyncBatchNormalization
        from tests.keras import programs as p

        x, y = p.data(16)
        found = []
        for layer in (
            keras.layers.BatchNormalization(synchronized=True, name="norm"),
            keras.layers.BatchNormalization(),
            SyncBatchNormalization(synchronized=True),
        ):
            model = keras.Sequential(
                [keras.Input((6,)), keras.Sequential([layer]), keras.layers.Dense(3)]
            )
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard=True), p.loss())
            with p.said() as said:
                model.fit(x, y, batch_size=4, epochs=2, verbose=0)
            found.append([each for each in said if "synchronized" in each])
        return found

    zero, one = on("tensorflow", 2, train)
    assert [len(said) for said in zero] == [1, 0, 0]
    assert "BatchNormalization 'norm' has synchronized=True" in zero[0][0]
    assert "SyncBatchNormalization" in zero[0][0]
    assert one == [[], [], []]


def test_datasets_that_ranks_shuffle_apart_are_told() -> None:
    pytest.importorskip("keras")
    pytest.importorskip("tensorflow")

    def deal(rank: int) -> dict[str, bool]:
        import keras
        import tensorflow as tf

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)
        model = p.dense(0)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard=True), p.loss())
        tf.random.set_seed(None)
        data = tf.data.Dataset.from_tensor_slices((x, y))
        shuffled = data.shuffle(8).map(lambda *row: row).repeat(2)
        kinds = {"plain": data, "shuffled": shuffled, "alike": data.shuffle(8, seed=1)}
        told = {}
        for name, kind in kinds.items():
            with p.said() as said:
                hvd.shard(kind.batch(4))
            told[name] = any("in another order on each rank" in each for each in said)
        for name, seed in (("fit", 1 + rank), ("alike in fit", 1)):
            with p.said() as said:
                model.fit(data.shuffle(8, seed=seed).batch(4), verbose=0)
            told[name] = any("in another order on each rank" in each for each in said)
        return told

    zero, one = on(QUICK, 2, deal)
    assert zero == {
        "plain": False,
        "shuffled": True,
        "alike": False,
        "fit": True,
        "alike in fit": False,
    }
    assert not any(one.values())


def test_an_unbuilt_model_begins_alike(backend: str) -> None:
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


def test_a_model_that_is_never_called_begins_alike(backend: str) -> None:
    if backend != "tensorflow":
        pytest.skip("the others have Keras call each model before the first step")

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
    """Those of a GAN: the model is compiled without them."""
    if backend != "tensorflow":
        pytest.skip("the others step optimizers of one's own in another way")

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
    """Rank 0 alone went on from a checkpoint of a GAN; the other's optimizer may wait for its first
    step.
    """
    if backend != "tensorflow":
        pytest.skip("the others step optimizers of one's own in another way")

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
    """As for mixed_float16, where the model holds the inner one, too."""
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


def test_what_is_validated_is_the_model_of_all_ranks(backend: str) -> None:
    """With the mean of the moving averages, and the weights of the rank with most steps: what a
    checkpoint holds. One rank alone validates in the end.
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


def test_what_normalization_makes_of_its_weights_is_alike(backend: str) -> None:
    """Each rank has adapted its layer to its own rows, and Keras has compiled what came of it."""

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
        model.fit(x[: 8 + 4 * rank], y[: 8 + 4 * rank], batch_size=4, verbose=0)  # not equally many
        return p.weights(model)

    zero, one, two = on(backend, 3, train, dynamic_process_sets=True)
    equal(zero, two)
    assert not np.array_equal(zero[0], one[0])


def test_training_resumes_everywhere_from_what_one_rank_saved(backend: str, tmp_path: Path) -> None:
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


def test_xla_is_left_out_of_training_alone() -> None:
    if "tensorflow" not in BACKENDS:
        pytest.skip("it is about TensorFlow")

    def train(rank: int) -> object:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)
        model = p.dense(0)
        model.compile(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard=True),
            p.loss(),
            jit_compile=True,
        )
        with p.said() as said:
            model.fit(x, y, batch_size=4, verbose=0)
            model.fit(x, y, batch_size=4, verbose=0)
        model.evaluate(x, y, verbose=0)
        return said, model.jit_compile

    zero, one = on("tensorflow", 2, train)
    assert one == ([], True)
    assert zero[1] is True
    assert len(zero[0]) == 1
    assert mentions(zero[0][0], "XLA", "training")


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


@pytest.mark.parametrize("interrupt", [False, True])
def test_errors_of_a_step_on_jax_are_what_they_are(interrupt: bool) -> None:
    """As ``hvd.plain_errors()`` has them; JAX raises its own, with their text."""
    if "jax" not in BACKENDS:
        pytest.skip("jax is not installed")

    def train(rank: int) -> str:
        import signal
        import time

        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        class TimeIsOver(Exception):
            pass

        raised = KeyboardInterrupt if interrupt else TimeIsOver

        class Late(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
                if rank == 1 and batch == 2:
                    time.sleep(3.0)
                if rank == 0 and batch == 1:
                    signal.setitimer(signal.ITIMER_REAL, 1.0)

        def over(*_: object) -> None:
            raise raised

        signal.signal(signal.SIGALRM, over)
        model = p.dense(0)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), p.loss())
        try:
            model.fit(*hvd.shard(*p.data(32)), batch_size=4, verbose=0, callbacks=[Late()])
        except (raised, hvd.HorovodInternalError) as error:
            return type(error).__name__
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return "nothing"

    assert on("jax", 2, train)[0] == ("KeyboardInterrupt" if interrupt else "TimeIsOver")
