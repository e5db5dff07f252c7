"""Seeds: equal on all ranks, and a separate generator for each rank."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


def test_global_generators_are_equal_and_a_given_one_is_local() -> None:
    def draw(rank: int) -> Any:
        import farandole.tensorflow as hvd

        tf.keras.random.uniform([])  # a generator that is in use before
        drawn = []
        for _ in range(2):
            mine = hvd.seed_everything(2**32 - 1)
            weights = tf.keras.layers.Dense(2)
            weights.build((None, 2))
            common = (
                random.random(),
                np.random.random(),
                tf.random.normal([2]).numpy().tolist(),
                tf.keras.random.uniform([2]).numpy().tolist(),
                weights.kernel.numpy().tolist(),
            )
            drawn.append((common, mine.normal([3]).numpy().tolist()))
        with pytest.raises(ValueError, match=mentioning("0", "4294967295")):
            hvd.seed_everything(-1)
        return drawn

    (first, again), (other, _) = job(2, draw)
    assert first == again
    assert first[0] == other[0]
    assert first[1] != other[1]
