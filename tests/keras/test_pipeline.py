"""Training the layers of one model on several ranks equals training the model on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.keras.backends import BACKENDS, on
from tests.keras.test_training import close, equal
from tests.kits.messages import mentioning, mentions

pytest.importorskip("keras", reason="keras is not installed")

STAGED = [name for name in ("torch", "tensorflow") if name in BACKENDS]


@pytest.fixture(params=STAGED, scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """Those that a pipeline runs on."""
    return str(request.param)


def test_stages_are_as_equal_as_they_can_be() -> None:
    from farandole.keras.pipeline.cuts import balanced

    for costs, stages, begins in (
        ([4, 4, 4, 4], 2, [0, 2]),
        ([1, 1, 1, 9], 2, [0, 3]),
        ([9, 1, 1, 1], 2, [0, 1]),
        ([0, 5, 0, 0, 5, 0], 2, [0, 4]),  # what costs nothing stays with the layer before it
        ([3, 3, 0, 3, 3, 3, 0], 3, [0, 3, 5]),
        ([1, 2, 3], 3, [0, 1, 2]),
        ([7, 0], 1, [0]),
    ):
        found = balanced(costs, stages)
        ends = [*found[1:], len(costs)]
        dearest = max(sum(costs[begin:end]) for begin, end in zip(found, ends, strict=True))
        expected = max(
            sum(costs[begin:end])
            for begin, end in zip(begins, [*begins[1:], len(costs)], strict=True)
        )
        assert (dearest, len(found)) == (expected, stages), (costs, found)
        assert all(costs[begin] > 0 for begin in found[1:])
    with pytest.raises(ValueError, match=mentioning("stages=3", "2", "4", "layers")):
        balanced([1, 0, 1, 0], 3)


def test_rows_that_do_not_divide() -> None:
    from farandole.keras.pipeline.cuts import parts

    assert parts(8, 4) == [2, 2, 2, 2]
    assert parts(7, 4) == [2, 2, 2, 1]
    assert parts(3, 4) == [1, 1, 1]


def cases() -> dict[str, Any]:
    """Models, how they are compiled, and what ``fit`` gets. Imported by the processes of a job."""
    import keras

    from tests.keras import programs as p

    layers, SGD, Adam = keras.layers, keras.optimizers.SGD, keras.optimizers.Adam
    x, y = p.data(22)
    weights = np.linspace(0.5, 2.0, len(x)).astype("float32")
    words = np.random.default_rng(1).integers(0, 5, size=(22, 4)).astype("int32")

    def stack() -> Any:
        """Losses of two stages; frozen weights; batches of 8, 8 and 6."""
        return keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8, kernel_regularizer=keras.regularizers.L2(0.02)),
                layers.ReLU(),
                layers.Lambda(lambda rows: rows * len(weights) / 11),
                layers.Dense(7, activation="tanh", trainable=False),
                layers.Dropout(0.0),
                layers.Dense(3, activity_regularizer=keras.regularizers.L2(0.03)),
            ]
        )

    def masked() -> Any:
        """A mask crosses the cut, to a layer and to the loss of each word. Rows of an embedding."""
        inputs = keras.Input((4,), dtype="int32")
        tensor = layers.Embedding(5, 6, mask_zero=True)(inputs)
        tensor = layers.GRU(8, return_sequences=True, unroll=True, name="sequence")(tensor)
        return keras.Model(inputs, layers.Dense(5, activation="tanh")(tensor))

    def normalized() -> Any:
        return keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8, name="wide"),
                layers.BatchNormalization(name="means"),
                layers.ReLU(name="cut"),
                layers.Dense(3),
            ]
        )

    fit = {"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0}
    return {
        "weighted": (
            stack,
            {"optimizer": lambda: SGD(0.2, momentum=0.9, clipnorm=1.0), "metrics": ["accuracy"]},
            {"x": x, "y": y, "sample_weight": weights, "validation_data": (x[:7], y[:7]), **fit},
            {},
        ),
        "masked": (
            masked,
            {"optimizer": lambda: Adam(0.02), "metrics": ["accuracy"]},
            {"x": words, "y": words, **fit},
            {"cuts": ["sequence"]},
        ),
        "normalized": (
            normalized,
            {
                "optimizer": lambda: SGD(0.2, loss_scale_factor=8.0),
                "weighted_metrics": ["accuracy"],
            },
            {"x": x, "y": y, "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}, **fit},
            {"micro_batches": 1, "cuts": ["cut"]},
        ),
    }


def test_two_stages_are_one_process(backend: str) -> None:
    """Weights, losses and metrics; batches that micro batches do not divide; each rank has only its
    part.
    """

    def train(rank: int) -> dict[str, Any]:
        import gc
        import weakref

        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        found: dict[str, Any] = {}
        for name, (make, options, data, cut) in cases().items():
            compiled = {"loss": p.loss(), **options, "optimizer": options["optimizer"]()}
            keras.utils.set_random_seed(rank)
            model = make()
            first = [weakref.ref(layer) for layer in model.layers if layer.weights]
            pipeline = hvd.Pipeline(model, stages=2, **cut)
            if rank == 0:
                found[f"{name} layers"] = [layer.name for layer in pipeline.layers_of_stage.layers]
            del model
            gc.collect()
            assert all(layer() is None for layer in first)  # no rank holds the whole model
            pipeline.compile(**compiled)
            history = pipeline.fit(**data).history
            found[f"{name} slots"] = (
                len(pipeline.optimizer.variables),
                len(pipeline.trainable_variables),
            )
            whole = pipeline.plain_model()
            assert (whole is None) == (rank > 0)
            found[name] = (
                history,
                pipeline.predict(data["x"], batch_size=5, verbose=0),
                whole and p.weights(whole),
            )
        # the ranks share out what one computes
        for name, (make, options, data, _) in list(cases().items())[rank::2]:
            compiled = {"loss": p.loss(), **options, "optimizer": options["optimizer"]()}
            keras.utils.set_random_seed(0)
            model = make()
            model.compile(**compiled)
            history = model.fit(**data).history
            found[f"{name} alone"] = history, model.predict(data["x"], verbose=0), p.weights(model)
        return found

    results = on(backend, 2, train)
    alone = {
        name: value for each in results for name, value in each.items() if name.endswith(" alone")
    }
    assert len(alone) == 3
    for name, (history, predictions, weights) in alone.items():
        case = name.removesuffix(" alone")
        print(case)
        (logs, first, gathered), (other_logs, second, nothing) = (each[case] for each in results)
        assert (logs, nothing) == (other_logs, None)
        assert logs.keys() == history.keys()
        for key, values in history.items():
            np.testing.assert_allclose(logs[key], values, rtol=1e-4, err_msg=key)
        close(gathered, weights)
        equal([first], [second])
        np.testing.assert_allclose(first, predictions, rtol=1e-3, atol=1e-5)
    assert results[0]["normalized layers"] == ["wide", "means"]
    # step, rate, and own velocities
    assert [each["weighted slots"] for each in results] == [(2 + 2, 2), (2 + 2, 2)]


def test_two_by_two_ranks_are_one_process() -> None:
    """Two pipelines on different halves of each batch; all ranks stop at the same step, with the
    same logs.
    """

    def train(rank: int) -> Any:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        class Logs(keras.callbacks.Callback):
            seen: list[Any] = []

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.seen.append({name: float(value) for name, value in logs.items()})

        x, y = p.data(48)
        y[40:] = (y[40:] + 1) % 3  # validation gets worse
        options = {
            "batch_size": 8,
            "epochs": 9,
            "shuffle": False,
            "verbose": 0,
            "validation_data": (x[40:], y[40:]),
            "callbacks": [
                keras.callbacks.EarlyStopping("val_accuracy", patience=1),
                Logs(),
                keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            ],
        }
        model = p.dense(0 if rank == 0 else 7)
        alone = None
        pipeline = hvd.Pipeline(model, stages=2, micro_batches=2)
        if rank == 0:
            model.compile(keras.optimizers.Adam(0.05), p.loss(), metrics=["accuracy"])
            alone = model.fit(x[:40], y[:40], **options).history, p.weights(model)
            Logs.seen.clear()
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.05), shard=True)
        pipeline.compile(optimizer, p.loss(), metrics=["accuracy"])
        options["batch_size"] = 4
        history = pipeline.fit(x[:40], y[:40], **options).history
        assert (pipeline.stage, pipeline.replicas) == (rank % 2, 2)
        for rows in (4, 8)[rank // 2 :]:  # each pipeline as often as it likes
            assert len(pipeline.predict(x[:rows], verbose=0)) == rows
        stage, whole = p.weights(pipeline), pipeline.plain_model()
        return history, Logs.seen, stage, alone, whole and p.weights(whole)

    results = on(STAGED[0], 4, train)
    history, seen, _, (expected, weights), whole = results[0]
    assert 1 < len(history["loss"]) < 9
    for each in results[1:]:
        assert (each[0], each[1]) == (history, seen)
    equal(results[0][2], results[2][2])
    equal(results[1][2], results[3][2])
    close(whole, weights, rtol=2e-3, atol=1e-5)
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-3, err_msg=name)


def test_a_saved_model_continues_training(backend: str, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def train(rank: int) -> Any:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        class Stop(keras.callbacks.Callback):
            """One rank wants to end."""

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.model.stop_training = epoch == 1 and rank == 1

        x, y = p.data(24)
        pipeline = hvd.Pipeline(p.dense(rank), micro_batches=3)
        pipeline.compile(keras.optimizers.SGD(0.5), p.loss(), metrics=["accuracy"])
        best = keras.callbacks.ModelCheckpoint(
            f"{folder}/best.keras", monitor="val_accuracy", save_best_only=True
        )
        logger = keras.callbacks.CSVLogger(f"{folder}/log.csv", append=True)
        history = pipeline.fit(
            x,
            y,
            batch_size=8,
            epochs=4,
            verbose=0,
            callbacks=[best, logger, Stop()],
            validation_split=0.25,
        ).history
        pipeline.save_weights(f"{folder}/last.weights.h5")
        before = pipeline.evaluate(x, y, batch_size=5, verbose=0)
        again = hvd.Pipeline(p.dense(5), micro_batches=1)
        again.compile("sgd", p.loss(), metrics=["accuracy"])
        again.load_weights(f"{folder}/last.weights.h5")
        after = again.evaluate(x, y, batch_size=24, verbose=0)
        best_model = keras.models.load_model(f"{folder}/best.keras")
        one = again.train_on_batch(x[:8], y[:8], return_dict=True)
        return history, before, after, [layer.name for layer in best_model.layers], one

    first, second = on(backend, 2, train)
    assert first == second
    history, before, after, layers, one = first
    assert len(history["val_accuracy"]) == 2
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["epoch", "0", "1"]  # by one rank
    np.testing.assert_allclose(before, after, rtol=1e-5)
    assert (len(layers), set(one)) == (2, {"loss", "accuracy"})


def test_invalid_pipelines_are_refused_on_all_ranks() -> None:
    def make(rank: int) -> list[str]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        layers = keras.layers

        def functional(call: Any) -> Any:
            inputs = keras.Input((6,), name="here")
            return keras.Model(inputs, call(layers.Dense(6, name="dense_a")(inputs)))

        def residual(tensor: Any) -> Any:
            return layers.Add(name="joined")([tensor, layers.Dense(6)(tensor)])

        class Own(keras.Model):
            def call(self, x: Any) -> Any:
                return x

        class Uncopied(layers.Dense):
            def get_config(self) -> Any:
                raise NotImplementedError("no config")

        class Scaled(layers.Layer):
            def call(self, x: Any, by: float = 1.0) -> Any:
                return x * by

        twice = layers.Dense(6, name="again")
        said = []

        def tell(model: Any, **options: Any) -> None:
            try:
                pipeline = hvd.Pipeline(model, **options)
                pipeline.compile(keras.optimizers.SGD(0.1, global_clipnorm=1.0), "mse")
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
            else:
                said.append("")

        tell(Own())
        tell(keras.Sequential([layers.Dense(3), layers.Dense(3)]))
        tell(functional(residual))
        tell(functional(lambda tensor: tensor * 2))
        tell(functional(lambda tensor: twice(twice(tensor))))
        tell(functional(lambda tensor: Scaled(name="scaled")(tensor, by=2.0)))
        tell(functional(lambda tensor: [tensor, layers.Dense(2)(tensor)]))
        tell(keras.Sequential([keras.Input((6,)), Uncopied(6, name="mine"), layers.Dense(2)]))
        tell(p.dense(0), stages=3)
        tell(functional(layers.ReLU()), stages=2)
        tell(p.dense(0), cuts=["nobody"])
        tell(p.dense(0), cuts=["a", "b"])
        tell(p.dense(0), micro_batches=0)
        tell(p.dense(0, features=5 + rank))
        tell(p.dense(0), micro_batches=2 + rank)
        tell(p.dense(0) if rank else Own())
        tell(p.dense(0))
        return said

    expected = [
        "Own is a custom class",
        "has no weights yet. Begin it with keras.Input",
        "the layer 'joined' (Add) takes 2 tensors",
        "(Multiply) is an operation, not a layer",
        "('again' and 'again') the layer occurs twice",
        "the layer 'scaled' (Scaled) is called with arguments in addition to a tensor (by)",
        "has 2 outputs",
        "'mine' (Uncopied) cannot be copied: no config",
        "the number of ranks, 2, must be a multiple of stages=3",
        "stages=2 is more than the 1 layers with weights (of 2 layers)",
        "unknown layer 'nobody'; a stage can begin with dense",
        "makes 3 stages instead of stages=2",
        "must be at least 1",
        (
            "rank 1 has Dense with weights [(6, 8)",
            "rank 0 has Dense with weights [(5, 8)",
        ),
        (
            "rank 1 has micro_batches=3, and rank 0 has 2",
            "rank 0 has micro_batches=2, and rank 1 has 3",
        ),
        "Own is a custom class",
        "global_clipnorm=1.0 needs the gradients of all layers",
    ]
    for rank, said in enumerate(on(STAGED[0], 2, make)):
        assert len(said) == len(expected)
        for text, part in zip(said, expected, strict=True):
            assert text.startswith("ValueError: ")
            assert (part if isinstance(part, str) else part[rank]) in text


def test_a_stage_that_fails_is_named_on_the_others() -> None:
    """A layer that fails in the middle of training; fewer batches on one rank; other options of
    fit.
    """

    def train(rank: int) -> list[str]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(24)
        pipeline = hvd.Pipeline(p.dense(0))
        pipeline.compile("sgd", p.loss())
        said = []
        for options in ({"epochs": 1 + rank}, {"x": x[: 24 - 16 * rank], "y": y[: 24 - 16 * rank]}):
            try:
                pipeline.fit(**{"x": x, "y": y, "batch_size": 8, "verbose": 0, **options})
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
        assert keras.backend.backend() == STAGED[0]
        return said

    for rank, (epochs, batches) in enumerate(on(STAGED[0], 2, train)):
        assert (
            epochs
            == "ValueError: Pipeline.fit: epochs must be the same on all ranks, but rank 0 has 1,"
            " and rank 1 has 2"
        )
        assert mentions(batches, "stage 1", "stage 0")
        assert batches.startswith(("PeerLostError", "ValueError")[rank])


def test_pipelines_continue_after_an_error(backend: str) -> None:
    """A callback fails on one rank only; gradients of the abandoned batch are dropped."""

    def train(rank: int) -> Any:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        class Fails(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                if batch == 1 and rank == 0:
                    raise RuntimeError("here")

        x, y = p.data(24)
        pipeline = hvd.Pipeline(p.dense(0))
        pipeline.compile(keras.optimizers.SGD(0.5), p.loss())
        with pytest.raises((RuntimeError, hvd.HorovodInternalError), match="here"):
            pipeline.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[Fails()])
        pipeline.fit(x[8:], y[8:], batch_size=8, shuffle=False, verbose=0)
        again = hvd.Pipeline(p.dense(0))
        again.compile(keras.optimizers.SGD(0.5), p.loss())
        again.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        alone = p.dense(0)
        if rank == 0:
            alone.compile(keras.optimizers.SGD(0.5), p.loss())
            alone.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        wholes = [pipeline.plain_model(), again.plain_model(), alone]
        return [p.weights(model) for model in wholes] if rank == 0 else None

    first, second, alone = on(backend, 2, train)[0]
    close(first, alone)
    close(second, alone)


def test_three_stages_whose_loss_is_added_by_layers(backend: str) -> None:
    """Without a loss in ``compile``, the last stage has no gradient of its outputs. Also a metric
    of two numbers.
    """

    def train(rank: int) -> Any:
        import warnings

        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        class Pair(keras.metrics.Mean):
            def update_state(self, y: Any, outputs: Any, sample_weight: Any = None) -> None:
                super().update_state(outputs)

            def result(self) -> Any:
                return {"mean": super().result(), "twice": 2 * super().result()}

        def make() -> Any:
            keras.utils.set_random_seed(3)
            first, second = (
                {"kernel_regularizer": keras.regularizers.L2(0.02)},
                {"activity_regularizer": "l2"},
            )
            return keras.Sequential(
                [
                    keras.Input((6,)),
                    keras.layers.Dense(5, **first),
                    keras.layers.Dense(4, **second),
                    keras.layers.Dense(3, **first),
                ]
            )

        x, y = p.data(14)
        data = {"x": x, "y": y, "batch_size": 7, "shuffle": False, "verbose": 0}
        pipeline = hvd.Pipeline(make(), stages=3, micro_batches=2)
        pipeline.compile(keras.optimizers.SGD(0.5), metrics=[Pair(name="pair")])
        with warnings.catch_warnings():  # torch warns of floats with a gradient, once per process
            warnings.filterwarnings("error", "Converting a tensor with requires_grad")
            logs = pipeline.fit(**data).history
        whole = pipeline.plain_model()
        if rank:
            return logs
        alone = make()
        alone.compile(keras.optimizers.SGD(0.5), metrics=[Pair(name="pair")])
        return logs, p.weights(whole), alone.fit(**data).history, p.weights(alone)

    (logs, found, expected, weights), *others = on(backend, 3, train)
    assert others == [logs, logs]
    assert logs.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(logs[name], values, rtol=1e-3)
    close(found, weights)


@pytest.mark.skipif("jax" not in BACKENDS, reason="JAX is not installed")
def test_a_pipeline_on_jax_names_the_alternative() -> None:
    def make(rank: int) -> str:
        import farandole.keras as hvd
        from tests.keras import programs as p

        try:
            hvd.Pipeline(p.dense(0))
        except ValueError as error:
            return str(error)
        return ""

    for said in on("jax", 2, make):
        assert mentions(said, "Keras", "torch")
        assert "hvd.DistributedOptimizer" in said


def test_a_layer_frozen_between_steps_is_unchanged(backend: str) -> None:
    def train(rank: int) -> list[bool]:
        import keras

        from farandole.keras.pipeline.computation import on_backend

        layers = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(2)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(layers.trainable_variables)
        stage, changed = on_backend(layers, eager=False), []
        for frozen in (False, True):
            layers.layers[0].trainable = not frozen
            before = [layer.get_weights()[0] for layer in layers.layers]
            passed = stage.forward(np.ones((3, 2), "float32"), None, training=True, watch=False)
            stage.backward(passed, keras.ops.ones_like(passed.outputs), 1.0)
            stage.step(optimizer)
            changed += [
                not np.array_equal(old, layer.get_weights()[0])
                for old, layer in zip(before, layers.layers, strict=True)
            ]
        return changed

    assert on(backend, 1, train) == [[True, True, False, True]]
