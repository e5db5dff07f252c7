"""Callbacks of all ranks make the same decisions."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from tests.keras.backends import on
from tests.keras.test_training import equal


def test_ranks_stop_together(backend: str, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def train(rank: int) -> dict[str, object]:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        callbacks = keras.callbacks
        x, y = p.data(32)
        mine, theirs = hvd.shard(x, y)
        noise = np.random.default_rng(rank).integers(0, 3, 16).astype("int32")
        found = {}

        def fit(
            name: str, *users: object, labels: object = theirs, epochs: int = 6, rate: float = 0.5
        ) -> None:
            model = p.dense(rank)
            model.compile(
                hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), p.loss(), metrics=["accuracy"]
            )
            history = model.fit(
                mine,
                labels,
                batch_size=8,
                epochs=epochs,
                verbose=0,
                callbacks=list(users),
                validation_data=(mine, noise),
            )
            found[name] = (
                len(history.epoch),
                p.weights(model),
                float(np.asarray(model.optimizer.learning_rate)),
            )

        early = callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
        fit("early", early)
        fit(
            "plateau",
            callbacks.ReduceLROnPlateau("val_loss", factor=0.1, patience=1, min_delta=0.01),
        )

        class Impatient(callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: object = None) -> None:
                if rank == 1:
                    self.model.stop_training = True

        class Unlucky(callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: object = None) -> None:
                if rank == 1 and epoch == 1:
                    self.model.stop_training = True

        fit("impatient", Impatient())
        fit("unlucky", Unlucky())
        path = f"{folder}/best-{backend}.keras"
        best = callbacks.ModelCheckpoint(path, monitor="val_loss", save_best_only=True)
        fit("checkpoint", best, epochs=3)
        found["best"] = 0, [np.asarray([best.best])], float(os.path.exists(path))
        logger = callbacks.CSVLogger(f"{folder}/log-{backend}.csv", append=True)
        for _ in range(2):
            fit("csv", logger, epochs=2)
        assert logger.filename == f"{folder}/log-{backend}.csv"
        broken = mine.copy()
        if rank == 1:
            broken[:] = np.nan
        model = p.dense(0)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), p.loss())
        history = model.fit(
            broken,
            theirs,
            batch_size=8,
            epochs=3,
            verbose=0,
            callbacks=[callbacks.TerminateOnNaN()],
        )
        found["nan"] = len(history.epoch), [], 0.0
        return found

    zero, one = on(backend, 2, train)
    for name, (epochs, weights, rate) in zero.items():
        print(name, epochs, rate)
        assert (epochs, rate) == (one[name][0], one[name][2])
        equal(weights, one[name][1])
    assert zero["early"][0] < 6
    assert zero["plateau"][2] < 0.5
    assert zero["impatient"][0] == 1
    assert zero["unlucky"][0] == 2
    assert zero["best"][2] == 1.0
    assert zero["nan"][0] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"best-{backend}.keras",
        f"log-{backend}.csv",
    ]
    rows = (tmp_path / f"log-{backend}.csv").read_text().splitlines()
    # each epoch once
    assert [row.partition(",")[0] for row in rows] == ["epoch", "0", "1", "0", "1"]


def test_differences_in_the_last_digit_do_not_change_decisions(backend: str) -> None:
    """GPUs, and processors of two kinds, add in different orders. Callbacks must still decide
    equally.
    """

    def train(rank: int) -> object:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        class Digits(keras.metrics.SparseCategoricalAccuracy):
            def result(self) -> object:
                return super().result() * (1 + 1e-6 * rank)

        seen = []
        for callbacks in ([], [hvd.callbacks.MetricAverageCallback()]):
            model = p.dense(0)
            model.compile(
                hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
                p.loss(),
                metrics=[Digits(name="it")],
            )
            log = keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: seen.append(dict(logs))
            )
            x, y = p.data(32)
            part = slice(rank * 16, rank * 16 + 16)
            model.fit(
                x[part],
                y[part],
                batch_size=8,
                epochs=2,
                verbose=0,
                validation_data=(x[part], y[part]),
                callbacks=[*callbacks, log],
            )
        return seen

    one, two = on(backend, 2, train)
    assert one == two
    assert {"it", "val_it"} <= set(one[0])
