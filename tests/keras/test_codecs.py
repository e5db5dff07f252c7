"""Keras's gradients through codecs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.keras.backends import on


def test_the_votes_of_all_ranks_by_argument_and_by_setting(backend: str) -> None:
    def fn(rank: int) -> None:
        import keras

        import farandole.keras as hvd

        def fitted(distributed: bool, of: int, **options: Any) -> Any:
            keras.utils.set_random_seed(0)
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
            random = np.random.default_rng(of)
            x, y = random.normal(size=(4, 3)).astype("float32"), random.normal(size=(4, 2)).astype("float32")
            optimizer = keras.optimizers.SGD(1.0)
            model.compile(hvd.DistributedOptimizer(optimizer, **options) if distributed else optimizer, "mse")
            before = [np.array(weight) for weight in model.get_weights()]
            model.fit(x, y, batch_size=4, epochs=1, verbose=0)
            return [now - old for now, old in zip(model.get_weights(), before, strict=True)]

        own = [fitted(False, of) for of in range(2)]
        votes = [np.sign(sum(map(np.sign, of_ranks))) for of_ranks in zip(*own, strict=True)]
        for options in ({"codec": "sign"}, {}):
            for found, vote in zip(fitted(True, rank, **options), votes, strict=True):
                assert np.allclose(found, vote, atol=1e-6)

    on(backend, 2, fn, codec="sign")
