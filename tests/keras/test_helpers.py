"""Seeds, and files that are complete or absent."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.keras.backends import on
from tests.kits.messages import mentioning


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
        hvd.barrier()  # all have read it, before it is written again
        with pytest.raises((OSError, RuntimeError), match=mentioning("No such file", "nowhere")):
            hvd.save(model, tmp_path / "nowhere" / "last.h5")
        with pytest.raises(ValueError, match=mentioning(".keras", ".h5", ".hdf5")):
            hvd.save(model, tmp_path / "last")
        return drawn, found

    ((first, again), found), ((other, _), other_found) = on(backend, 2, check)
    assert first == again
    assert first[0] == other[0]
    assert first[1] != other[1]
    assert found == other_found == 1.0
    assert [each.name for each in tmp_path.iterdir()] == ["last.keras"]


@pytest.mark.parametrize("ending", ["keras", "h5"])
def test_custom_objects_may_make_distributed_optimizers(
    backend: str, ending: str, tmp_path: Path
) -> None:
    """Their options count, as in programs for Horovod; functions with other names stay unchanged."""
    file = str(tmp_path / f"model.{ending}")

    def check(rank: int) -> Any:
        import keras

        import farandole.keras as hvd

        class Mine(keras.optimizers.SGD):  # type: ignore[misc]
            pass

        def twice(x: Any) -> Any:
            return 2 * x

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, activation=twice)])
        model.compile(
            hvd.DistributedOptimizer(Mine(0.5, momentum=0.9)), keras.losses.MeanSquaredError()
        )
        hvd.broadcast_global_variables(0, model)
        model.train_on_batch(np.ones((1, 2)), np.ones((1, 1)))
        hvd.save(model, file)
        hvd.barrier()
        found = []
        for mine in (
            lambda **o: hvd.DistributedOptimizer(Mine(**o), op=hvd.Sum),
            lambda **o: Mine(**o),
            Mine,
        ):
            again = hvd.load_model(file, custom_objects={"Mine": mine, "twice": twice})
            optimizer, weights = again.optimizer, again.trainable_variables
            state = [float(keras.ops.sum(each)) for each in optimizer.variables]
            assert state == [float(keras.ops.sum(each)) for each in model.optimizer.variables]
            before = [keras.ops.convert_to_numpy(each) for each in weights]
            moved = [0.9 * keras.ops.convert_to_numpy(each) for each in optimizer.momentums]
            optimizer.apply([keras.ops.ones(each.shape) * (rank + 1) for each in weights], weights)
            step = keras.ops.convert_to_numpy(weights[1]) - before[1] - moved[1]
            found.append((type(optimizer).__name__, round(float(step[0]), 4)))
        return found

    zero, one = on(backend, 2, check)
    assert zero == one == [("Mine", -1.5), ("Mine", -0.75), ("Mine", -0.75)]
