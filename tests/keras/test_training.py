"""Training on several ranks equals training on one, in every mode of Keras."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.keras.backends import QUICK, on


def equal(*results: list[np.ndarray]) -> None:
    for each in results[1:]:
        for one, two in zip(results[0], each, strict=True):
            np.testing.assert_array_equal(one, two)


def close(
    one: list[np.ndarray], two: list[np.ndarray], *, rtol: float = 2e-4, atol: float = 2e-6
) -> None:
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def test_two_ranks_with_half_batches_equal_one_rank(backend: str) -> None:
    in_parts(backend, 2, ["sgd", "momentum", "adam"])


def test_four_ranks_with_quarters_of_it() -> None:
    in_parts(QUICK, 4, ["momentum"])


def in_parts(backend: str, n: int, names: list[str]) -> None:
    """The model has an embedding and dense layers."""

    def train(rank: int) -> dict[str, list[np.ndarray]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        found = {}
        kinds = {
            "sgd": lambda: keras.optimizers.SGD(0.2),
            "momentum": lambda: keras.optimizers.SGD(
                0.1, momentum=0.9, nesterov=True, weight_decay=0.01
            ),
            "adam": lambda: keras.optimizers.Adam(0.02, global_clipnorm=0.5),
        }
        x, y = p.words(48)
        for name in names[rank::n]:  # what one process computes: the ranks share out the work
            model = p.embedding(0)
            model.compile(kinds[name](), p.loss())
            model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
            found[f"{name} alone"] = p.weights(model)
        for name in names:
            model = p.embedding(rank)
            model.compile(hvd.DistributedOptimizer(kinds[name](), shard=True), p.loss())
            model.fit(x, y, batch_size=16 // hvd.size(), epochs=2, shuffle=False, verbose=0)
            found[name] = p.weights(model)
        return found

    check(on(backend, n, train), len(names))


def check(results: list[dict[str, list[np.ndarray]]], count: int, loose: str = "") -> None:
    """Check that all ranks have the weights that one process computed."""
    alone = {
        name: weights
        for each in results
        for name, weights in each.items()
        if name.endswith(" alone")
    }
    assert len(alone) == count
    for name, expected in alone.items():
        print(name)
        weights = [each[name.removesuffix(" alone")] for each in results]
        equal(*weights)
        close(
            weights[0],
            expected,
            **({"rtol": 2e-2, "atol": 2e-3} if name == f"{loose} alone" else {}),
        )


def test_every_way_of_training_keeps_replicas_equal(backend: str) -> None:
    def train(rank: int) -> dict[str, list[np.ndarray]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(32)
        mine, theirs = hvd.shard(x, y)
        found = {}

        def model(**options: object) -> object:
            each = p.dense(rank)
            each.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), p.loss(), **options)
            return each

        jobs = {"fit": {}, "eager": {"run_eagerly": True}}
        if backend == "tensorflow":  # on JAX it is what fit does by itself
            jobs["jit"] = {"jit_compile": True}
        if backend != "torch":
            jobs["steps"] = {"steps_per_execution": 2}
        for name, options in jobs.items():
            each = model(**options)
            each.fit(mine, theirs, batch_size=8, epochs=1, shuffle=False, verbose=0)
            found[name] = p.weights(each)
            if name in ("fit", "jit"):
                each = model(**options)
                hvd.broadcast_global_variables(0, each)
                for begin in (0, 8):
                    each.train_on_batch(mine[begin : begin + 8], theirs[begin : begin + 8])
                found[f"train_on_batch {name}"] = p.weights(each)
        each = p.own_step(backend)(p.dense(rank))
        each.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), p.loss())
        each.fit(mine, theirs, batch_size=8, epochs=1, shuffle=False, verbose=0)
        found["own step"] = p.weights(each)
        return found

    results = on(backend, 2, train)
    for name, weights in results[0].items():
        print(name)
        equal(weights, results[1][name])
        close(weights, results[0]["fit"])


def test_options_of_the_optimizer(backend: str) -> None:
    """Accumulation, clipping, moving averages, scaled losses, sums, local variables: on two ranks
    as on one.
    """

    def train(rank: int) -> dict[str, list[np.ndarray]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
        x, y = p.data(48)
        plain = lambda optimizer: optimizer  # noqa: E731
        wrap = hvd.DistributedOptimizer
        cases = {
            "clipnorm": (lambda: SGD(0.2, clipnorm=0.1), plain, wrap),
            "clipvalue": (lambda: SGD(0.2, clipvalue=0.05), plain, wrap),
            "accumulation": (lambda: Adam(0.05, gradient_accumulation_steps=2), plain, wrap),
            "clipped accumulation": (
                lambda: SGD(0.2, clipnorm=0.1, gradient_accumulation_steps=3),
                plain,
                wrap,
            ),
            "ema": (
                lambda: SGD(0.2, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2),
                plain,
                wrap,
            ),
            "loss scale factor": (lambda: SGD(0.2, loss_scale_factor=8.0), plain, wrap),
            "loss scale inside": (
                lambda: SGD(0.2),
                keras.optimizers.LossScaleOptimizer,
                lambda optimizer: keras.optimizers.LossScaleOptimizer(wrap(optimizer)),
            ),
            "loss scale outside": (
                lambda: keras.optimizers.LossScaleOptimizer(SGD(0.2, momentum=0.5)),
                plain,
                wrap,
            ),
            "sum": (
                lambda: SGD(0.2),
                plain,
                lambda optimizer: wrap(_slower(optimizer), op=hvd.Sum),
            ),
            "predivide": (
                lambda: SGD(0.2),
                plain,
                lambda optimizer: wrap(optimizer, gradient_predivide_factor=2.0),
            ),
            "mean of passes": (
                lambda: SGD(0.2, gradient_accumulation_steps=3),
                plain,
                lambda _: wrap(
                    SGD(0.2), backward_passes_per_step=3, average_aggregated_gradients=True
                ),
            ),
            "sum of passes": (
                lambda: SGD(0.2, gradient_accumulation_steps=3),
                plain,
                lambda _: wrap(SGD(0.2 / 3), backward_passes_per_step=3),
            ),
            "fp16": (
                lambda: SGD(0.2),
                plain,
                lambda optimizer: wrap(optimizer, compression=hvd.Compression.fp16),
            ),
        }

        def _slower(optimizer: object) -> object:
            optimizer.learning_rate = 0.1
            return optimizer

        found = {}
        for name in list(cases)[rank::2]:  # the ranks share out the work
            optimizer, alone_of, _ = cases[name]
            model = p.dense(0)
            model.compile(alone_of(optimizer()), p.loss())
            model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
            found[f"{name} alone"] = p.weights(model)
        for name, (optimizer, _, of) in cases.items():
            model = p.dense(rank)
            model.compile(of(optimizer()), p.loss())
            model.fit(*hvd.shard(x, y), batch_size=8, epochs=2, shuffle=False, verbose=0)
            found[name] = p.weights(model)
        return found

    check(on(backend, 2, train), 13, loose="fp16")


def test_sparse_gradients_are_clipped_equally_on_all_ranks() -> None:
    """A norm of rows counts rows of one word separately, so gradients must be dense on a lone rank,
    too.
    """

    def train(rank: int) -> dict[str, list[np.ndarray]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        sets = [hvd.add_process_set([each]) for each in range(2)]
        x, y = p.words(48)
        found = {}
        for name, process_set in (
            ("clipped alone", sets[rank]),
            ("clipped", hvd.global_process_set),
        ):
            model = p.embedding(0)
            optimizer = keras.optimizers.SGD(0.5, global_clipnorm=0.2)
            optimizer = hvd.DistributedOptimizer(
                optimizer, sparse_as_dense=True, process_set=process_set, shard=True
            )
            model.compile(optimizer, p.loss())
            model.fit(x, y, batch_size=16 // process_set.size(), epochs=2, shuffle=False, verbose=0)
            found[name] = p.weights(model)
        return found

    check(on("tensorflow", 2, train, dynamic_process_sets=True), 1)


def test_gradients_of_an_unfinished_step_stay_local(backend: str) -> None:
    """An epoch has 4 batches and a step 3: gradients pending at the next ``fit`` belong to the
    rank's own samples.
    """

    def train(rank: int) -> dict[str, list[np.ndarray]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(64)
        optimizer = lambda: keras.optimizers.SGD(0.2, momentum=0.9, gradient_accumulation_steps=3)  # noqa: E731

        def fitted(model: Any, chosen: Any, *args: Any, batch_size: int) -> list[np.ndarray]:
            model.compile(chosen, p.loss())
            for _ in range(3):
                model.fit(*args, batch_size=batch_size, shuffle=False, verbose=0)
            return p.weights(model)

        found = {}
        if rank == 0:
            found["again alone"] = fitted(p.dense(0), optimizer(), x, y, batch_size=16)
        found["again"] = fitted(
            p.dense(rank), hvd.DistributedOptimizer(optimizer()), *hvd.shard(x, y), batch_size=8
        )
        return found

    check(on(backend, 2, train), 1)


def test_a_file_saved_while_accumulating_has_all_gradients(backend: str) -> None:
    """An epoch has 4 batches and a step 3: a program that resumes from the file takes the steps of
    the undisturbed job.
    """

    def train(rank: int) -> dict[str, list[np.ndarray]]:
        import tempfile
        from pathlib import Path

        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(64)
        optimizer = keras.optimizers.SGD(0.2, momentum=0.9, gradient_accumulation_steps=3)
        model, found = p.dense(0), {}
        model.compile(hvd.DistributedOptimizer(optimizer), p.loss())
        model.fit(*hvd.shard(x, y), batch_size=8, shuffle=False, verbose=0)
        if rank == 0:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.keras"
                model.save(path)
                alone = keras.models.load_model(path, custom_objects={"loss": p.loss()})
            for begin in (0, 16):
                alone.train_on_batch(x[begin : begin + 16], y[begin : begin + 16])
            found["again alone"] = p.weights(alone)
        for begin in (0, 16):
            model.train_on_batch(x[begin + rank : begin + 16 : 2], y[begin + rank : begin + 16 : 2])
        found["again"] = p.weights(model)
        return found

    check(on(backend, 2, train), 1)


def test_fit_called_again_continues_as_fit_does(backend: str) -> None:
    """If ranks exchange weights, each has the momentum of its own steps."""

    def train(rank: int) -> dict[str, list[np.ndarray]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        def fitted(times: int, epochs: int) -> list[np.ndarray]:
            model = p.dense(0)
            optimizer = keras.optimizers.SGD(0.2, momentum=0.9)
            model.compile(hvd.DistributedOptimizer(optimizer, strategy="local_sgd:2"), p.loss())
            for _ in range(times):
                model.fit(
                    *hvd.shard(*p.data(64)), batch_size=8, epochs=epochs, shuffle=False, verbose=0
                )
            return p.weights(model)

        return {"again alone": fitted(1, 2), "again": fitted(2, 1)}

    check(on(backend, 2, train), 1)
