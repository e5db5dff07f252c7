"""Variables local to each rank."""

from __future__ import annotations

import numpy as np

from tests.keras.backends import on


def test_local_variables_train_equally_on_one_rank_and_many(
    backend: str,
) -> None:
    def train(rank: int) -> list[tuple[str, list[np.ndarray], list[np.ndarray]]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(24)
        alone = [hvd.add_process_set([each]) for each in range(2)]
        found = []
        cases = {
            "sum": {"backward_passes_per_step": 3},
            "mean": {"backward_passes_per_step": 3, "average_aggregated_gradients": True},
            "plain": {},
        }
        for name, options in cases.items():
            of_set = []
            for process_set in (alone[rank], hvd.global_process_set):
                model = p.dense(0)
                optimizer = hvd.PartialDistributedOptimizer(
                    keras.optimizers.SGD(0.1),
                    local_layers=model.layers[0],
                    process_set=process_set,
                    scale_local_gradients=False,
                    **options,
                )
                model.compile(optimizer, p.loss())
                for begin in range(0, 24, 4):
                    model.train_on_batch(x[begin : begin + 4], y[begin : begin + 4])
                of_set.append(p.weights(model))
            found.append((name, *of_set))
        return found

    for rank in on(backend, 2, train, dynamic_process_sets=True):
        for name, alone, together in rank:
            for one, two in zip(alone, together, strict=True):
                np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_global_norm_of_shared_parameters_keeps_ranks_equal(backend: str) -> None:
    """Local gradients differ between ranks: in the norm that clips shared gradients, they would
    separate the ranks.
    """

    def fn(rank: int) -> None:
        import keras

        import farandole.keras as hvd

        for passes in (1, 2):
            shared, local = keras.Variable([0.0, 0.0]), keras.Variable([0.0])
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(1.0, global_clipnorm=1.0),
                scale_local_gradients=False,
                backward_passes_per_step=passes,
                average_aggregated_gradients=True,
            )
            optimizer.register_local_var(local)
            optimizer.build([local, shared])
            for _ in range(passes):
                optimizer.apply(
                    [keras.ops.array([0.5 + 7 * rank]), keras.ops.array([3.0, 4.0])],
                    [local, shared],
                )
            np.testing.assert_allclose(keras.ops.convert_to_numpy(shared), [-0.6, -0.8], rtol=1e-5)
            np.testing.assert_allclose(
                keras.ops.convert_to_numpy(local), [-1.0 if rank else -0.5], rtol=1e-5
            )

    on(backend, 2, fn)


def test_frozen_weights_of_local_layers_are_left_alone(backend: str) -> None:
    def train(rank: int) -> dict[str, tuple[list[np.ndarray], list[np.ndarray]]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        layers = keras.layers
        # rank 0 takes fewer steps, and continues from rank 1's weights
        x, y = p.data(16 + 8 * rank, seed=rank)
        found = {}
        for name in ("optimizer", "callback"):
            keras.utils.set_random_seed(rank)
            local = [layers.Dense(8, trainable=False, name="w"), layers.BatchNormalization()]
            rest = [layers.Dense(8), layers.BatchNormalization(), layers.Dense(3, name="w_2")]
            model = keras.Sequential([keras.Input((6,)), *local, *rest])
            optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
            callbacks = []
            if name == "optimizer":
                optimizer = hvd.PartialDistributedOptimizer(optimizer, local_layers=local)
            else:
                optimizer = hvd.DistributedOptimizer(optimizer)
                mine = [variable for layer in local for variable in layer.weights]
                callbacks = [
                    hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=mine)
                ]
            before = np.asarray(local[0].kernel)
            model.compile(optimizer, p.loss())
            model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
            assert np.array_equal(before, np.asarray(local[0].kernel)), name
            slots = [np.asarray(each) for each in optimizer.variables if "w_2_" in each.name]
            assert len(slots) == 2
            found[name] = (
                p.weights(keras.Sequential(local)),
                [*p.weights(keras.Sequential(rest)), *slots],
            )
        return found

    zero, one = on(backend, 2, train)
    for name in zero:
        for number, (mine, theirs) in enumerate(zip(zero[name][0], one[name][0], strict=True)):
            if number != 1:  # the bias of a frozen layer: zeros
                assert not np.array_equal(mine, theirs), (name, number)
        for mine, theirs in zip(zero[name][1], one[name][1], strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_variables_without_gradients_and_local_ones(
    backend: str,
) -> None:
    """A layer that the loss does not reach precedes a layer that is local to each rank."""

    def train(rank: int) -> list[list[np.ndarray]]:
        import keras

        import farandole.keras as hvd

        first, unused, own = (keras.Variable(np.ones(2, "float32")) for _ in range(3))
        optimizer = hvd.PartialDistributedOptimizer(
            keras.optimizers.SGD(1.0), scale_local_gradients=False
        )
        optimizer.register_local_var(own)
        gradients = [
            keras.ops.convert_to_tensor(np.full(2, 1.0 + rank, "float32")) for _ in range(2)
        ]
        optimizer.apply([None, *gradients], [unused, first, own])
        return [keras.ops.convert_to_numpy(each) for each in (first, unused, own)]

    for rank, (first, unused, own) in enumerate(on(backend, 2, train)):
        np.testing.assert_allclose(first, -0.5)
        np.testing.assert_allclose(unused, 1.0)
        np.testing.assert_allclose(own, -float(rank))
