"""Files that callbacks of all ranks would write are written by the first rank."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.keras.backends import QUICK, on


def test_a_folder_of_tensorboard_is_written_by_one_rank(tmp_path: Path) -> None:
    """Two writers in a folder are two lines in each of its pictures."""
    for package in ("keras", "tensorflow", "tensorboard"):
        pytest.importorskip(package)

    def train(rank: int, folder: str = str(tmp_path)) -> tuple[list[int], list[str]]:
        import os

        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(40)
        boards = [
            keras.callbacks.TensorBoard(
                f"{folder}/{name}", histogram_freq=1, write_graph=name != "list"
            )
            for name in ("alike", f"own-{rank}", "list")
        ]
        for given in (boards[:2], boards[2:]):
            model = p.dense(0)
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard=True), p.loss())
            callbacks = (
                given
                if len(given) > 1
                else keras.callbacks.CallbackList(given, add_history=True, model=model)
            )
            model.fit(
                x,
                y,
                batch_size=10,
                epochs=2,
                verbose=0,
                validation_data=(x, y),
                callbacks=callbacks,
            )
        hvd.barrier()
        parts = [f"{board.log_dir}/{part}" for board in boards for part in ("train", "validation")]
        return [len(os.listdir(part)) for part in parts], [board.log_dir for board in boards]

    for rank, (files, folders) in enumerate(on("tensorflow", 2, train)):
        assert files == [1] * 6
        assert folders == [f"{tmp_path}/{name}" for name in ("alike", f"own-{rank}", "list")]


def test_checkpoints_of_orbax_are_written_by_one_rank(tmp_path: Path) -> None:
    """Two writers found each other's folders, which is an error."""
    keras = pytest.importorskip("keras")
    if not hasattr(keras.callbacks, "OrbaxCheckpoint") or not importlib.util.find_spec("orbax"):
        pytest.skip("needs Keras 3.14 and orbax-checkpoint")

    def train(rank: int, folder: str = str(tmp_path)) -> tuple[list[str], float, float]:
        import os

        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        x, y = p.data(40)
        model = p.dense(0)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard=True), p.loss())
        saved = keras.callbacks.OrbaxCheckpoint(
            f"{folder}/saved",
            monitor="loss",
            save_best_only=True,
            max_to_keep=2,
            save_on_background=False,
        )
        history = model.fit(x, y, batch_size=10, epochs=3, verbose=0, callbacks=[saved]).history
        hvd.barrier()
        return sorted(os.listdir(f"{folder}/saved")), float(saved.best), history["loss"][-1]

    zero, one = on(QUICK, 2, train)
    assert zero == one
    assert zero[0] == ["1", "2"]
    assert zero[1] == zero[2]
