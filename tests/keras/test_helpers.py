"""Seeds, and files that are whole or not there."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.keras.backends import on


def test_seeds_and_files(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "last.keras"

    def check(rank: int) -> Any:
        import keras

        import farandole.keras as hvd
        from tests.keras import programs as p

        drawn = []
        for _ in range(2):
            mine = hvd.seed_everything(2**32 - 1)
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
            weights = [keras.ops.convert_to_numpy(each).tolist() for each in model.weights]
            noise = keras.ops.convert_to_numpy(keras.random.normal((3,), seed=mine)).tolist()
            drawn.append(((random.random(), np.random.random(), weights), noise))
        model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), p.loss())
        model.weights[0].assign(model.weights[0] * 0 + rank + 1)
        hvd.save(model, path)
        found = float(keras.ops.convert_to_numpy(hvd.load_model(path).weights[0]).max())
        hvd.barrier()  # all have read it, before it is written anew
        with pytest.raises((OSError, RuntimeError), match=r"No such file or directory: .*nowhere"):
            hvd.save(model, tmp_path / "nowhere" / "last.h5")
        with pytest.raises(ValueError, match=r"last' must end with \.keras, \.h5 or \.hdf5"):
            hvd.save(model, tmp_path / "last")
        return drawn, found

    ((first, again), found), ((other, _), other_found) = on(backend, 2, check)
    assert first == again
    assert first[0] == other[0]
    assert first[1] != other[1]
    assert found == other_found == 1.0
    assert [each.name for each in tmp_path.iterdir()] == ["last.keras"]
