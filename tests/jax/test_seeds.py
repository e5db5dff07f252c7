"""Seeds: equal on all ranks, and a separate key for each rank."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

jax = pytest.importorskip("jax", reason="jax is not installed")


def test_the_key_is_of_this_rank_and_never_that_of_the_seed() -> None:
    def draw(rank: int) -> Any:
        import farandole.jax as hvd

        drawn = []
        for seed in (7, 7, 2**32 - 1):
            mine = hvd.seed_everything(seed)
            common = random.random(), np.random.random()
            drawn.append((common, jax.random.normal(mine, (3,)).tolist()))
            assert drawn[-1][1] != jax.random.normal(jax.random.key(seed), (3,)).tolist()
        with pytest.raises(ValueError, match=mentioning("0", "4294967295")):
            hvd.seed_everything(-1)
        return drawn

    (first, again, last), (other, _, other_last) = job(2, draw)
    assert first == again
    assert first[0] == other[0]
    assert first[1] != other[1]
    assert last[1] != other_last[1]
