"""Lookup layers of Keras 2, which list their vocabulary among the model's variables, although it is
none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentions
from tests.run_job import job

pytest.importorskip("tf_keras", reason="tf_keras is not installed")


def test_all_ranks_have_the_state_of_rank_0() -> None:
    def body(rank: int) -> dict[str, Any]:
        import tensorflow as tf
        import tf_keras

        import farandole.keras.tf_keras as hvd
        from tests.keras.programs import said

        words = np.array([["a"], ["b"], ["c"], ["a"]])[: 4 - rank]
        numbers = np.array([[10.0], [20.0], [30.0], [40.0]], "float32") + rank
        layers = tf_keras.layers
        kinds: dict[str, tuple[Any, Any]] = {
            "StringLookup": (layers.StringLookup(), words[rank:]),
            "IntegerLookup": (layers.IntegerLookup(), numbers[rank:].astype("int64")),
            "TextVectorization": (layers.TextVectorization(output_sequence_length=1), words[rank:]),
            "Discretization": (layers.Discretization(num_bins=3), numbers),
        }
        y, found = np.arange(4.0)[:, None], {}

        def build(name: str) -> tuple[Any, Any, Any]:
            layer, seen = kinds[name]
            layer.adapt(seen)
            kind = {"U": "string", "i": "int64", "f": "float32"}[seen.dtype.kind]
            inputs = tf_keras.Input((1,), dtype=kind)
            inner = layers.Flatten()(layers.Embedding(8, 2)(layer(inputs)))
            return tf_keras.Model(inputs, layers.Dense(1)(inner)), layer, seen

        def state(layer: Any) -> Any:
            if hasattr(layer, "bin_boundaries"):
                return [float(edge) for edge in layer.bin_boundaries]
            return [str(word) for word in layer.get_vocabulary()]

        for name in kinds:
            model, layer, seen = build(name)
            model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.1)), "mse")
            with said() as messages:
                model.fit(
                    tf.constant(seen),
                    y[: len(seen)],
                    verbose=0,
                    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
                )
            found[f"fit {name}"] = state(layer), messages
            model, layer, _ = build(name)
            if name != "Discretization":
                hvd.broadcast_variables(model.variables, root_rank=0)
                found[f"variables {name}"] = state(layer), []
            model, layer, _ = build(name)
            model.compile(tf_keras.optimizers.SGD(0.1), "mse")
            with said() as messages:
                kept = hvd.elastic.KerasState(model, epoch=0)
                kept.commit()
                kept.restore()
                kept.sync()
            found[f"elastic {name}"] = state(layer), messages
        return found

    zero, one = job(2, body)
    for name, (state, messages) in zero.items():
        assert one[name][0] == state, name
        assert "variables" in name or mentions(messages, "rank 1", "rank 0", "FAR026"), name
    assert zero["variables StringLookup"][0] == ["[UNK]", "a", "c", "b"]
