"""Callbacks of Keras on a rank that joins, returns to a commit, or becomes the first rank."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import farandole
from farandole.errors import JobFailedError
from farandole.keras.elastic_fit.snapshots import put_back, taken
from tests.keras.backends import QUICK

LOSSES = (1.0, 0.9, 0.87, 0.86, 0.7)


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KERAS_BACKEND", QUICK)
    return pytest.importorskip("keras")


def _plateau(keras: Any) -> Any:
    callback = keras.callbacks.ReduceLROnPlateau("loss", patience=2, min_delta=0.1)
    optimizer = SimpleNamespace(learning_rate=keras.Variable(1.0))
    callback.set_model(SimpleNamespace(optimizer=optimizer, metrics=[]))
    callback.on_train_begin()
    return callback


def _progress(callback: Any) -> dict[str, Any]:
    return {name: vars(callback)[name] for name in ("best", "wait", "min_delta", "monitor_op")}


def test_a_new_rank_compares_metrics_as_the_others_do(keras: Any) -> None:
    """Keras changes the sign of ``min_delta`` at the end of the first epoch."""
    old, new = _plateau(keras), _plateau(keras)
    old.on_epoch_end(0, {"loss": LOSSES[0]})
    put_back([new], taken([old]))
    for epoch, loss in enumerate(LOSSES[1:], 1):
        old.on_epoch_end(epoch, {"loss": loss})
        new.on_epoch_end(epoch, {"loss": loss})
        assert _progress(new) == _progress(old)


def test_a_rank_repeats_the_end_of_the_first_epoch(keras: Any) -> None:
    callback, undisturbed = _plateau(keras), _plateau(keras)
    commit = taken([callback])
    callback.on_epoch_end(0, {"loss": LOSSES[0]})
    put_back([callback], commit)
    for epoch, loss in enumerate(LOSSES):
        callback.on_epoch_end(epoch, {"loss": loss})
        undisturbed.on_epoch_end(epoch, {"loss": loss})
        assert _progress(callback) == _progress(undisturbed)


def test_another_rank_continues_a_csv_file(keras: Any, tmp_path: Path) -> None:
    from farandole.keras.elastic_fit.csv_files import follow_path
    from farandole.keras.files import written_once

    path = str(tmp_path / "log.csv")
    lost, kept = (keras.callbacks.CSVLogger(path) for _ in range(2))
    paths = [[path], [path]]
    with written_once([lost], paths, 0), written_once([kept], paths, 1):
        for logger in (lost, kept):
            logger.on_train_begin()
            logger.on_epoch_end(0, {"loss": 1.0, "val_loss": 2.0})
    with written_once([kept], paths[1:], 0):
        follow_path(kept)
        kept.on_epoch_end(1, {"loss": 3.0, "val_loss": 4.0})
    with written_once([kept], paths, 1):  # another rank is the first now
        follow_path(kept)
        kept.on_epoch_end(2, {"loss": 5.0, "val_loss": 6.0})
        kept.on_train_end()
    lost.on_train_end()
    with open(path) as file:
        assert [row["loss"] for row in csv.DictReader(file)] == ["1.0", "3.0"]


def test_a_resumed_training_continues_a_csv_file(keras: Any, tmp_path: Path) -> None:
    from farandole.keras.elastic_fit.csv_files import begin_within

    path = tmp_path / "log.csv"
    lost = keras.callbacks.CSVLogger(str(path), separator=";")
    lost.on_train_begin()
    for epoch in range(3):
        lost.on_epoch_end(epoch, {"loss": 1.0, "val_loss": 2.0})
    lost.on_train_end()
    path.write_text(path.read_text() + "3;1.")  # killed within a write
    resumed = keras.callbacks.CSVLogger(str(path), separator=";")
    begin_within(resumed, 2)
    for epoch in (2, 3):
        resumed.on_epoch_end(epoch, {"loss": 5.0, "val_loss": 6.0})
    resumed.on_train_end()
    with open(path) as file:
        rows = [(row["epoch"], row["loss"]) for row in csv.DictReader(file, delimiter=";")]
    assert rows == [("0", "1.0"), ("1", "1.0"), ("2", "5.0"), ("3", "5.0")]
    assert not resumed.append


def _trained_twice(folder: Path) -> dict[str, Any]:
    import os

    import keras
    import numpy as np

    import farandole.keras as hvd
    from farandole.core.api.commits.keeper import write_now

    hvd.init()
    lost = folder / "lost"
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), shard=True), "mse")
    begun: dict[str, list[int]] = {}
    stopping = [keras.callbacks.EarlyStopping("loss", patience=9) for _ in range(2)]

    class Faults(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            begun.setdefault(self.name, []).append(epoch)
            if (self.name, epoch) == ("second", 2) and not lost.exists():
                lost.touch()
                os._exit(1 if write_now() else 0)

    data = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    fits = [
        model.fit(
            *data,
            batch_size=4,
            epochs=3,
            callbacks=[stop, keras.callbacks.CSVLogger(folder / name), Faults(name)],
            verbose=0,
        )
        for name, stop in zip(("first", "second"), stopping, strict=True)
    ]
    return {
        "begun": begun,
        "epochs": [fit.epoch for fit in fits],
        "losses": [loss for fit in fits for loss in fit.history["loss"]],
        "best": stopping[1].best,
    }


@pytest.mark.slow
@pytest.mark.parametrize("size", [{"np": 1, "min_np": 1}, {"np": 1}], ids=["elastic", "fixed"])
def test_a_commit_on_disk_belongs_to_one_fit(
    keras: Any, tmp_path: Path, size: dict[str, int]
) -> None:
    """A process that loads a commit of the second ``fit`` skips the first, and has the progress of
    the callbacks and their files.
    """
    settings = {**size, "commit_dir": str(tmp_path / "commits")}
    with pytest.raises(JobFailedError):
        farandole.run(_trained_twice, (tmp_path,), **settings)
    (found,) = farandole.run(_trained_twice, (tmp_path,), **settings)
    assert found["begun"] == {"second": [2]}
    assert found["epochs"] == [[0, 1, 2]] * 2
    losses = found["losses"]
    assert losses == sorted(losses, reverse=True)
    assert found["best"] == losses[-1]
    for name in ("first", "second"):
        with open(tmp_path / name) as file:
            assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1", "2"]
