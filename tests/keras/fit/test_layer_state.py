"""State of layers outside of variables: all ranks train with rank 0's, or the layer is reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.keras.backends import on
from tests.kits.messages import mentions

WORDS = np.array([["a"], ["b"], ["c"], ["d"]])


def test_ranks_train_with_the_vocabulary_of_rank_0() -> None:
    pytest.importorskip("tensorflow")

    def train(rank: int) -> dict[str, Any]:
        import keras
        import tensorflow as tf

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = tf.constant(WORDS), np.arange(4.0)[:, None]
        seen = [["a", "b", "c"], ["d", "c", "b", "a"]][rank]
        layers = keras.layers
        kinds = {
            "StringLookup": layers.StringLookup(),
            "TextVectorization": layers.TextVectorization(output_sequence_length=1),
            "tf_idf": layers.StringLookup(
                output_mode="tf_idf", max_tokens=6, pad_to_max_tokens=True
            ),
            "given": layers.StringLookup(vocabulary=seen),
        }
        found = {}
        for name, layer in kinds.items():
            if name != "given":
                layer.adapt(tf.constant(seen)[:, None])
            inputs = keras.Input((1,), dtype="string")
            inner = layer(inputs)
            if name != "tf_idf":
                inner = layers.Flatten()(layers.Embedding(6, 2)(inner))
            model = keras.Model(inputs, layers.Dense(1)(inner))
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
            model.predict(x, verbose=0)  # compiled with this rank's own vocabulary
            with p.said() as said:
                model.fit(x, y + rank, verbose=0)
            found[name] = (layer.get_vocabulary(), model.predict(x, verbose=0).tolist(), said)
        return found

    zero, one = on("tensorflow", 2, train)
    for name, (words, values, said) in zero.items():
        assert one[name][0] == words, name
        assert {"a", "b", "c"} == {str(each) for each in words} & set("abcd"), name
        assert one[name][1] == values, name
        assert mentions(said, "rank 1", "rank 0", "4 entries", "3 entries", "FAR026"), (name, said)


def test_discretization_and_constants(backend: str) -> None:
    def train(rank: int) -> dict[str, Any]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x = np.linspace(0, 9, 10, dtype="float32")[:, None]
        found: dict[str, Any] = {}

        def fit(name: str, *layers: Any) -> None:
            model = keras.Sequential([keras.Input((1,)), *layers, keras.layers.Dense(1)])
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
            with p.said() as said:
                model.fit(x, x + rank, verbose=0)
            found[name] = said, model.predict(x, verbose=0).tolist()

        edges = keras.layers.Discretization(num_bins=4, output_mode="one_hot")
        edges.adapt(x + 3 * rank)
        fit("edges", edges)
        found["bins"] = list(edges.bin_boundaries)
        fit("scale", keras.layers.Rescaling(1 / (rank + 2), name="scaled"))
        fit("random", keras.layers.Dropout(0.5, seed=rank), keras.layers.GaussianNoise(0.1))
        fit("constant", keras.layers.Normalization(mean=1.0 + rank, variance=2.0, name="normalize"))
        return found

    zero, one = on(backend, 2, train)
    assert zero["bins"] == one["bins"]
    assert zero["edges"][1] == one["edges"][1]
    assert mentions(zero["edges"][0], "discretization", "rank 1", "FAR026")
    assert zero["random"][0] == []
    assert mentions(zero["scale"][0], "scaled", "scale", "0.5", "0.3333333333333333", "FAR026")
    assert mentions(zero["constant"][0], "normalize", "mean", "2.0", "FAR026")
    assert [len(zero[name][0]) for name in ("edges", "scale", "constant")] == [1, 1, 1]


def test_layers_outside_of_the_model(backend: str) -> None:
    pytest.importorskip("tensorflow")

    def train(rank: int) -> list[list[str]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        found = []
        for own in (True, False):
            lookup = keras.layers.StringLookup()
            lookup.adapt([["a", "b", "c"], ["d", "c", "b", "a"]][rank and own])
            x = np.array([lookup(word[0]) for word in WORDS])
            model = keras.Sequential(
                [keras.Input(()), keras.layers.Embedding(6, 2), keras.layers.Dense(1)]
            )
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
            with p.said() as said:
                model.fit(x, x + rank, verbose=0)
            found.append(said)
            del lookup
        return found

    zero, _ = on(backend, 2, train)
    assert mentions(zero[0], "string_lookup", "rank 1", "4 entries", "3 entries", "FAR026")
    assert zero[1] == []
