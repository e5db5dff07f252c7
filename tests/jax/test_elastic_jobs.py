"""An elastic job with JAX: a rank is lost within a compiled function."""

from __future__ import annotations

from typing import Any

import pytest

import farandole

pytest.importorskip("jax", reason="JAX is not installed")


def trained() -> Any:
    import os

    import jax
    import jax.numpy as jnp
    import numpy as np

    import farandole.jax as hvd

    hvd.init()
    fails = os.environ["FARANDOLE_MEMBER"] == "1"

    @jax.jit
    def mean_of(x: Any) -> Any:
        return hvd.allreduce(x)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < 6:
            if fails and state.step == 3:
                os._exit(1)
            state.total = state.total + mean_of(jnp.ones(2))
            state.step += 1
            state.commit()

    state = hvd.elastic.JaxState(total=jnp.zeros(2), step=0)
    train(state)
    return np.asarray(state.total).tolist(), state.step, hvd.size()


@pytest.mark.slow
def test_a_rank_is_lost_within_a_compiled_function() -> None:
    results = farandole.run(trained, np=3, min_np=2, max_np=3, hosts="localhost:2,127.0.0.1:2")
    assert results == [([6.0, 6.0], 6, 2)] * 2


GOAL, STEPS = (1.0, 2.0, 3.0), 20


def followed(spec: str) -> Any:
    """Walk to ``GOAL`` with parameter servers; rank 1 is lost."""
    import os

    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import farandole.jax as hvd

    hvd.init()
    fails = os.environ["FARANDOLE_MEMBER"] == "1"
    optimizer = hvd.DistributedOptimizer(optax.sgd(0.25), strategy=spec)

    @jax.jit
    def step_of(weights: Any, kept: Any) -> Any:
        changes, kept = optimizer.update(weights - jnp.array(GOAL), kept, weights)
        return optax.apply_updates(weights, changes), kept

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < STEPS:
            if fails and state.step == 3:
                os._exit(1)
            state.weights, state.kept = step_of(state.weights, state.kept)
            jax.block_until_ready(state.weights)
            state.step += 1
            state.commit()

    weights = jnp.zeros(3)
    state = hvd.elastic.JaxState(weights=weights, kept=optimizer.init(weights), step=0)
    train(state)
    return np.asarray(state.weights).tolist(), state.step


@pytest.mark.slow
def test_parameter_servers_outlive_a_rank() -> None:
    """The momentum on the servers is kept, and asynchronous ranks continue."""
    weights = [0.0] * 3
    velocity = [0.0] * 3
    for _ in range(STEPS):
        velocity = [
            0.5 * speed + 0.25 * (goal - at)
            for speed, at, goal in zip(velocity, weights, GOAL, strict=True)
        ]
        weights = [at + speed for at, speed in zip(weights, velocity, strict=True)]
    spec = "ps:1,optimizer=momentum,momentum=0.5"
    for found, step in farandole.run(followed, (spec,), np=3, min_np=2):
        assert (found, step) == (pytest.approx(weights, rel=1e-4), STEPS)
    for found, step in farandole.run(followed, ("ssp:2",), np=3, min_np=2):
        assert (found, step) == (pytest.approx(GOAL, rel=0.05), STEPS)
