"""Ranks that train different models with JAX, or read the same data, are reported; others are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kits.heard import heard
from tests.kits.messages import mentions

jax = pytest.importorskip("jax", reason="JAX is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")


def fresh(seed: int) -> Any:
    keys = jax.random.split(jax.random.PRNGKey(seed))
    return {"kernel": jax.random.normal(keys[0], (6, 3)), "bias": jax.random.normal(keys[1], (3,))}


def alike(rank: int) -> Any:
    import farandole.jax as hvd

    return hvd.broadcast_parameters(fresh(rank), root_rank=0)


def train(rank: int, params: Any, steps: int, **options: Any) -> None:
    """``jit``, ``passes``, ``rate``, ``load`` (a step before which rank 0 alone changes the bias),
    ``own_data``.
    """
    import farandole.jax as hvd

    optimizer = hvd.DistributedOptimizer(
        optax.sgd(options.get("rate", 0.1)), backward_passes_per_step=options.get("passes", 1)
    )
    state = optimizer.init(params)

    def take(params: Any, state: Any, x: Any, y: Any) -> Any:
        gradients = jax.grad(
            lambda p: ((jax.numpy.tanh(x @ p["kernel"] + p["bias"]) - y) ** 2).mean()
        )(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    step_of = jax.jit(take) if options.get("jit", True) else take
    for step in range(1, steps + 1):
        if (rank, step) == (0, options.get("load")):
            params = {**params, "bias": params["bias"] + 1.0}
        random = np.random.default_rng(100 * step + rank * options.get("own_data", True))
        params, state = step_of(
            params, state, random.normal(size=(4, 6)), random.normal(size=(4, 3))
        )
    jax.block_until_ready(params)


@pytest.mark.parametrize("jit", [True, False])
def test_mistakes(jit: bool) -> None:
    def no_broadcast(rank: int) -> None:
        train(rank, fresh(rank), 2, jit=jit)

    def late_load(rank: int) -> None:
        train(rank, alike(rank), 9, jit=jit, load=6)

    def rate(rank: int) -> None:
        train(rank, alike(rank), 3, jit=jit, rate=0.1 * (1 + rank))

    def same_data(rank: int) -> None:
        train(rank, alike(rank), 3, jit=jit, own_data=False)

    def well(rank: int) -> None:
        train(rank, alike(rank), 9, jit=jit)
        train(rank, alike(rank), 9, jit=jit, passes=2)

    programs = no_broadcast, late_load, rate, same_data, well
    (start, drift, other_rate, data, nothing), other = heard(2, *programs)
    assert nothing == []
    assert other == [[]] * len(programs)
    assert [len(texts) for texts in (start, drift, other_rate, data)] == [1] * 4, (
        start,
        drift,
        other_rate,
        data,
    )
    assert mentions(start[0], "different weights")
    assert "in 2 of 2 parameters, first in ['bias']" in start[0]
    assert "params = hvd.broadcast_parameters(params, root_rank=0)" in start[0]
    assert mentions(drift[0], "1", "2", "'bias'", "step 4", "step 8")
    assert mentions(other_rate[0], "step 1", "step 2")
    assert mentions(other_rate[0], "learning rate")
    assert mentions(data[0], "gradients")
