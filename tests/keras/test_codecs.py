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


def test_votes_by_the_momentum_of_each_rank(backend: str) -> None:
    def fn(rank: int) -> None:
        import keras

        import farandole.keras as hvd

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), codec="sign:0.5"), lambda y, found: y * found)
        x, weights = np.array([[1.0, -2.0]], "float32"), []
        for factor in (4.0, -1.0, -9.0):  # the gradient is y * x
            model.fit(x, np.array([[factor]], "float32"), batch_size=1, epochs=1, verbose=0)
            weights.append(np.array(model.get_weights()[0]).reshape(-1).tolist())
        assert weights == [[-1, 1], [-2, 2], [-1, 1]]  # momentum: 2, 0.5, -4.25 times x

    on(backend, 2, fn)
