"""Fit distributes every kind of data between ranks."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.keras.backends import QUICK, on
from tests.keras.test_training import close, equal


def test_every_kind_of_data_is_distributed(backend: str) -> None:
    """Arrays, dictionaries, tf.data, PyDatasets, torch DataLoaders and generators give the result
    of one process.
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
    """Also if the rows do not divide by the ranks: repeated rows are trained on, but not validated."""
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
