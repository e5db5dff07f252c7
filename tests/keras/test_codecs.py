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
            x, y = (
                random.normal(size=(4, 3)).astype("float32"),
                random.normal(size=(4, 2)).astype("float32"),
            )
            optimizer = keras.optimizers.SGD(1.0)
            model.compile(
                hvd.DistributedOptimizer(optimizer, **options) if distributed else optimizer, "mse"
            )
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

        model = keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        model.compile(
            hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), codec="sign:0.5"),
            lambda y, found: y * found,
        )
        x, weights = np.array([[1.0, -2.0]], "float32"), []
        for factor in (4.0, -1.0, -9.0):  # the gradient is y * x
            model.fit(x, np.array([[factor]], "float32"), batch_size=1, epochs=1, verbose=0)
            weights.append(np.array(model.get_weights()[0]).reshape(-1).tolist())
        assert weights == [[-1, 1], [-2, 2], [-1, 1]]  # momentum: 2, 0.5, -4.25 times x

    on(backend, 2, fn)


def test_a_codec_is_given_the_sum_of_several_passes(backend: str) -> None:
    """A vote makes a step as long as one pass does, and a threshold applies to the sum, as in every
    framework.
    """

    def fn(rank: int) -> None:
        import keras

        import farandole.keras as hvd

        def trained(codec: str, average: bool) -> list[float]:
            variable = keras.Variable([0.0, 0.0, 0.0], name="v")
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(1.0),
                backward_passes_per_step=2,
                average_aggregated_gradients=average,
                codec=codec,
            )
            optimizer.build([variable])
            for gradient in ([1.0, -3.0, 0.25], [0.5, -3.0, 0.25]):
                optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
            found: list[float] = np.array(keras.ops.convert_to_numpy(variable)).tolist()
            return found

        assert trained("sign", False) == trained("sign", True) == [-1, 1, -1]
        assert trained("threshold:1", False) == [-1.5, 6, 0]  # the sums are 1.5, -6 and 0.5
        assert trained("threshold:1", True) == [0, 3, 0]  # the means are half of them

    on(backend, 2, fn)


def test_residuals_are_without_the_loss_scale(backend: str) -> None:
    """Results plus residuals equal the inputs, although the scale doubles after every second step."""

    def fn(rank: int) -> None:
        import keras

        import farandole.keras as hvd
        from farandole.strategies.codecs import codec

        chosen = codec("topk:0.25")
        x = np.random.default_rng(rank).standard_normal((7, 12)).astype("float32")
        scaling = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=64.0, dynamic_growth_steps=2
        )
        model = keras.Sequential(
            [keras.Input((12,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        optimizer = hvd.DistributedOptimizer(scaling, codec=chosen)
        model.compile(optimizer, lambda y, found: y * found)  # so that the gradient is a row
        model.fit(x, np.ones((7, 1), "float32"), batch_size=1, epochs=1, shuffle=False, verbose=0)
        assert float(keras.ops.convert_to_numpy(optimizer.dynamic_scale)) == 512.0
        (left,) = [
            array for name, array in chosen.state_dict().items() if name.startswith("residual/")
        ]
        given, left = keras.ops.convert_to_numpy(
            hvd.allgather(np.stack([x.sum(0), left])[None])
        ).mean(0)
        assert np.abs(left).max() > 0.1, "something is left"
        np.testing.assert_allclose(
            -np.array(model.get_weights()[0])[:, 0], given - left, rtol=1e-4, atol=1e-5
        )

    on(backend, 2, fn)


def test_residuals_stay_with_their_variable(
    backend: str,
) -> None:
    def fn(rank: int) -> None:
        import keras

        import farandole.keras as hvd
        from farandole.strategies.codecs import codec

        random, chosen = np.random.default_rng(rank), codec("onebit")
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), codec=chosen)
        variables = [keras.Variable(np.zeros(12, "float32"), name="kernel") for _ in range(2)]
        optimizer.build(variables)
        given = np.zeros((2, 12), "float32")
        for step in range(4):
            gradients = random.standard_normal((2, 12)).astype("float32")
            gradients[0] *= step < 2  # it is frozen then
            given += gradients
            tensors = [keras.ops.convert_to_tensor(gradient) for gradient in gradients]
            optimizer.apply([None if step >= 2 else tensors[0], tensors[1]], variables)
        state = chosen.state_dict()
        left = [state["residual/kernel"].copy(), state["residual/kernel (2)"].copy()]
        for each, key in zip(left, ("kernel", "kernel (2)"), strict=True):
            if f"owed/{key}" in state:
                begin, owed = int(state[f"at/{key}"][0]), state[f"owed/{key}"]
                each[begin : begin + len(owed)] += owed
        both = keras.ops.convert_to_numpy(hvd.allgather(np.stack([given, left])[None])).mean(0)
        came = -np.stack([keras.ops.convert_to_numpy(variable) for variable in variables])
        np.testing.assert_allclose(came, both[0] - both[1], rtol=1e-4, atol=1e-5)

    on(backend, 2, fn)


def test_a_codec_replaces_the_momentum_of_sgd(backend: str) -> None:
    """With equal gradients of 1 and -1, which onebit sends exactly, steps grow to half of the
    momentum's sum: see ``codecs.momentum``.
    """

    def fn(rank: int) -> None:
        import keras

        import farandole.keras as hvd

        for nesterov in (False, True):
            model = keras.Sequential(
                [
                    keras.Input((2,)),
                    keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
                ]
            )
            sgd = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=nesterov)
            model.compile(hvd.DistributedOptimizer(sgd, codec="onebit"), lambda y, found: y * found)
            x, y = np.array([[1.0, -1.0]] * 10, "float32"), np.ones((10, 1), "float32")
            model.fit(x, y, batch_size=1, epochs=1, verbose=0)
            moved = sum(min((1 - 0.9 ** (step + 1)) / 0.1, 5) for step in range(10))
            assert np.allclose(model.get_weights()[0].reshape(-1), [-0.1 * moved, 0.1 * moved])

    on(backend, 2, fn)
