"""Mistakes in a call of fit are reported."""

from __future__ import annotations

import pytest

from tests.keras.backends import BACKENDS, QUICK, on
from tests.kits.messages import mentions


def test_invalid_arguments_of_fit_are_explained(backend: str) -> None:
    def train(rank: int) -> dict[str, object]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(32)
        mine, theirs = hvd.shard(x, y)
        found = {}

        def fit(name: str, optimizer: object, x: object, y: object, **options: object) -> None:
            model = p.dense(options.pop("seed", rank))
            model.compile(optimizer, p.loss())
            with p.said() as said:
                try:
                    model.fit(x, y, batch_size=8, verbose=0, shuffle=False, **options)
                except ValueError as error:
                    said.append(str(error))
            found[name] = said

        wrap = hvd.DistributedOptimizer
        SGD = keras.optimizers.SGD
        fit("fine", wrap(SGD(0.1)), mine, theirs)
        fit("plain", SGD(0.1), mine, theirs)
        fit("plain again", SGD(0.1), mine, theirs)
        fit("same arrays", wrap(SGD(0.1)), x, y)
        fit("epochs", wrap(SGD(0.1)), mine, theirs, epochs=1 + rank)
        fit("shards", wrap(SGD(0.1), shard=True), x, y)
        fit("shards of shards", wrap(SGD(0.1), shard=True), mine, theirs)

        def batches() -> object:
            for begin in range(0, 32, 8):
                yield x[begin : begin + 8], y[begin : begin + 8]

        model = p.dense(0)
        model.compile(wrap(SGD(0.1)), p.loss())
        with p.said() as said:
            model.fit(batches(), steps_per_epoch=4, verbose=0)
        found["same batches"] = said
        model = p.dense(rank)
        model.compile(wrap(SGD(0.1)), p.loss())
        with p.said() as said:
            for begin in (0, 8):  # what differs at first may be broadcast after the first step
                model.train_on_batch(mine[begin : begin + 8], theirs[begin : begin + 8])
        found["no broadcast"] = said
        model = p.dense(0) if rank == 0 else p.embedding(0)
        try:
            hvd.broadcast_global_variables(0, model)
        except ValueError as error:
            found["other model"] = [str(error)]
        return found

    zero, one = on(backend, 2, train)
    says = {
        "plain": ("exchanged nothing, so the 2 ranks of this job train 2 separate models"),
        "same arrays": "passed the same arrays",
        "shards of shards": ("the ranks passed different arrays, but with shard=True"),
        "same batches": "computed the same gradients",
        "epochs": "epochs must be the same on all ranks, but is [1, 2]",
        "no broadcast": "began with different weights",
        "other model": (
            "the same variables in the same order, but rank 0 has 4, rank 1 has 3; only rank"
        ),
    }
    assert {name: said for name, said in zero.items() if name not in says} == {
        "fine": [],
        "plain again": [],
        "shards": [],
    }
    for name, text in says.items():
        assert len(zero[name]) == 1, (name, zero[name])
        assert text in zero[name][0], (name, zero[name])
    assert {name for name, said in one.items() if said} == {"epochs", "other model"}


def test_unsynchronized_batch_normalization_is_reported() -> None:
    pytest.importorskip("keras")
    pytest.importorskip("tensorflow")

    def train(rank: int) -> list[list[str]]:
        import keras

        import farandole.keras as hvd
        from farandole.tensorflow import SyncBatchNormalization
        from tests.keras import programs as p

        x, y = p.data(16)
        found = []
        for layer in (
            keras.layers.BatchNormalization(synchronized=True, name="norm"),
            keras.layers.BatchNormalization(),
            SyncBatchNormalization(synchronized=True),
        ):
            model = keras.Sequential(
                [keras.Input((6,)), keras.Sequential([layer]), keras.layers.Dense(3)]
            )
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard=True), p.loss())
            with p.said() as said:
                model.fit(x, y, batch_size=4, epochs=2, verbose=0)
            found.append([each for each in said if "synchronized" in each])
        return found

    zero, one = on("tensorflow", 2, train)
    assert [len(said) for said in zero] == [1, 0, 0]
    assert "BatchNormalization 'norm' has synchronized=True" in zero[0][0]
    assert "SyncBatchNormalization" in zero[0][0]
    assert one == [[], [], []]


def test_datasets_shuffled_differently_by_ranks_are_reported() -> None:
    pytest.importorskip("keras")
    pytest.importorskip("tensorflow")

    def deal(rank: int) -> dict[str, bool]:
        import keras
        import tensorflow as tf

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)
        model = p.dense(0)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard=True), p.loss())
        tf.random.set_seed(None)
        data = tf.data.Dataset.from_tensor_slices((x, y))
        shuffled = data.shuffle(8).map(lambda *row: row).repeat(2)
        kinds = {"plain": data, "shuffled": shuffled, "alike": data.shuffle(8, seed=1)}
        is_reported = {}
        for name, kind in kinds.items():
            with p.said() as said:
                hvd.shard(kind.batch(4))
            is_reported[name] = any("in a different order on each rank" in each for each in said)
        for name, seed in (("fit", 1 + rank), ("alike in fit", 1)):
            with p.said() as said:
                model.fit(data.shuffle(8, seed=seed).batch(4), verbose=0)
            is_reported[name] = any("in a different order on each rank" in each for each in said)
        return is_reported

    zero, one = on(QUICK, 2, deal)
    assert zero == {
        "plain": False,
        "shuffled": True,
        "alike": False,
        "fit": True,
        "alike in fit": False,
    }
    assert not any(one.values())


def test_xla_is_left_out_of_training_alone() -> None:
    if "tensorflow" not in BACKENDS:
        pytest.skip("does not apply: it is about TensorFlow")

    def train(rank: int) -> object:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(16)
        model = p.dense(0)
        model.compile(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard=True),
            p.loss(),
            jit_compile=True,
        )
        with p.said() as said:
            model.fit(x, y, batch_size=4, verbose=0)
            model.fit(x, y, batch_size=4, verbose=0)
        model.evaluate(x, y, verbose=0)
        return said, model.jit_compile

    zero, one = on("tensorflow", 2, train)
    assert one == ([], True)
    assert zero[1] is True
    assert len(zero[0]) == 1
    assert mentions(zero[0][0], "XLA", "training")


@pytest.mark.parametrize("interrupt", [False, True])
def test_errors_of_a_step_on_jax_keep_their_type(interrupt: bool) -> None:
    """As within ``hvd.plain_errors()``; JAX raises its own type, with the text."""
    if "jax" not in BACKENDS:
        pytest.skip("jax is not installed")

    def train(rank: int) -> str:
        import signal
        import time

        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        class TimeIsOver(Exception):
            pass

        raised = KeyboardInterrupt if interrupt else TimeIsOver

        class Late(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
                if rank == 1 and batch == 2:
                    time.sleep(3.0)
                if rank == 0 and batch == 1:
                    signal.setitimer(signal.ITIMER_REAL, 1.0)

        def over(*_: object) -> None:
            raise raised

        signal.signal(signal.SIGALRM, over)
        model = p.dense(0)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), p.loss())
        try:
            model.fit(*hvd.shard(*p.data(32)), batch_size=4, verbose=0, callbacks=[Late()])
        except (raised, hvd.HorovodInternalError) as error:
            return type(error).__name__
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return "nothing"

    assert on("jax", 2, train)[0] == ("KeyboardInterrupt" if interrupt else "TimeIsOver")


@pytest.mark.parametrize("callback", [True, False])
def test_a_plain_optimizer_is_found_at_20_steps(callback: bool) -> None:
    def train(rank: int) -> list[str]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(64)
        model = p.dense(0)
        model.compile(keras.optimizers.SGD(0.1), p.loss())
        heard: list[str] = []

        class Stop(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: object = None) -> None:
                if batch == 30:
                    heard.extend(said)

        own = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if callback else []
        with p.said() as said:
            model.fit(
                x[rank::2],
                y[rank::2],
                batch_size=1,
                verbose=0,
                shuffle=False,
                callbacks=[*own, Stop()],
            )
        return heard

    zero, one = on(QUICK, 2, train)
    assert one == []
    assert len(zero) == 1
    assert mentions(zero[0], "20 steps", "SGD", "FAR012"), zero


def test_epochs_that_are_too_few() -> None:
    def train(rank: int) -> list[list[str]]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(32)
        found = []
        for whole in (True, False):
            model = p.dense(0)
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), p.loss())
            stop = keras.callbacks.EarlyStopping(monitor="loss", patience=3 if whole else 2)
            epochs = 6 // hvd.size()
            with p.said() as said:
                data = (x, y) if whole else hvd.shard(x, y)
                model.fit(*data, batch_size=8, epochs=epochs, verbose=0, callbacks=[stop])
            found.append(said)
        return found

    (whole, shared), other = on(QUICK, 2, train)
    assert other == [[], []]
    assert shared == []
    assert mentions(whole, "test_mistakes.py", "size()", "3", "2", "FAR027")
    assert mentions(whole, "patience=3", "3", "4", "FAR028")
