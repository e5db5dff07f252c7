"""Programs whose result depends on the number of ranks, in a job with a fixed global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.keras.backends import QUICK, on
from tests.kits.messages import mentions

CURES = {
    "shard": "shard=True",
    "accumulation": "gradient_accumulation_steps=2",
    "sum": "'sum'",
    "mask": "sample_weight",
    "synchronized": "BatchNormalization",
    "local": "register_local_var",
    "codec": "codec=",
    "loop": "model.fit",
    "later loop": "model.fit",
}


def test_results_that_depend_on_ranks_are_refused() -> None:
    found, _ = on(QUICK, 2, _objections, fixed_global_batch=True)
    wrong = {name: text for name, text in found.items() if not mentions(text, CURES[name])}
    assert not wrong
    assert set(found) == set(CURES)
    assert all(mentions(text, "--fixed-global-batch") for text in found.values())


def _objections(rank: int) -> dict[str, str]:
    """Return the message of the error for each program."""
    import keras
    import numpy as np

    import farandole.keras as hvd
    from farandole.errors import SettingsError

    hvd.init()
    x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    words = np.ones((8, 3), "int32")

    def fit(
        layers: Any = (), loss: Any = "mse", sample: Any = x, options: Any = None, **more: Any
    ) -> Any:
        model = keras.Sequential([keras.Input(sample.shape[1:]), *layers, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, **(options or {}))
        made = hvd.DistributedOptimizer(optimizer, **{"shard": True, **more})
        model.compile(made, loss)
        model.fit(sample, y, batch_size=4, verbose=0)
        return model

    def local() -> None:
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard=True)
        optimizer.register_local_var(model.trainable_weights[0])
        model.compile(optimizer, "mse")
        model.fit(x, y, verbose=0)

    def loop(*, later: bool) -> None:
        model = fit() if later else keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        if not later:
            made = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard=True)
            model.compile(made, "mse")
        model.train_on_batch(x, y)

    synchronized = keras.layers.BatchNormalization()
    synchronized._process_set = None  # as hvd.SyncBatchNormalization has, on TensorFlow
    embedding = keras.layers.Embedding(4, 2, mask_zero=True)
    programs: dict[str, Callable[[], Any]] = {
        "shard": lambda: fit(shard=False),
        "accumulation": lambda: fit(options={"gradient_accumulation_steps": 2}),
        "sum": lambda: fit(loss=keras.losses.MeanSquaredError(reduction="sum")),
        "mask": lambda: fit([embedding], sample=words),
        "synchronized": lambda: fit([synchronized]),
        "local": local,
        "codec": lambda: fit(codec="int8"),
        "loop": lambda: loop(later=False),
        "later loop": lambda: loop(later=True),
    }
    found = {}
    for name, program in programs.items():
        with pytest.raises(SettingsError) as caught:
            program()
        found[name] = str(caught.value)
    return found
