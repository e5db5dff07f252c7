"""JAX's gradients through codecs, inside ``jit`` and outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.jax.test_optimizer import batch, loss, parameters
from tests.job import job

jax = pytest.importorskip("jax", reason="jax is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")


def test_the_votes_of_all_ranks_by_argument_and_by_setting() -> None:
    def fn(rank: int) -> None:
        import farandole.jax as hvd

        params = parameters()
        own = [jax.tree_util.tree_leaves(jax.grad(loss)(params, *batch(0, other, 3))) for other in range(3)]
        wanted = [np.sign(sum(map(np.sign, of_ranks))) for of_ranks in zip(*own, strict=True)]

        def check(found: Any) -> None:
            for one, other in zip(jax.tree_util.tree_leaves(found), wanted, strict=True):
                assert np.array_equal(one, other)

        plain = hvd.value_and_grad(loss, codec="sign")
        for both in (plain, jax.jit(plain), hvd.value_and_grad(loss)):
            for _ in range(2):
                check(both(params, *batch(0, rank, 3))[1])
        optimizer = hvd.DistributedOptimizer(optax.sgd(-1.0), codec="sign")
        updates, _ = optimizer.update(jax.grad(loss)(params, *batch(0, rank, 3)), optimizer.init(params), params)
        check(updates)

    job(3, fn, codec="sign")
