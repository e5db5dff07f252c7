"""Strategies that exchange weights in elastic jobs with JAX: a new process gets the strategy's
state, and the models reach the optimum that is known.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import farandole

pytest.importorskip("jax", reason="JAX is not installed")

STEPS, KILLED = 60, (1, 14)  # a process and its step, between two exchanges


def trained(specs: Sequence[str]) -> Any:
    """Distances from the optimum, and for each membership its step, whether the slots are the same
    on all ranks, and whether there is momentum.
    """
    import jax
    import jax.numpy as jnp
    import optax

    import farandole.jax as hvd

    hvd.init()
    process = int(os.environ["FARANDOLE_MEMBER"])
    goal = jnp.arange(1.0, 6.0)
    optimizers = [hvd.DistributedOptimizer(optax.sgd(0.05), strategy=spec) for spec in specs]
    gradient = jax.jit(jax.grad(lambda params, x: jnp.mean((x @ (params - goal)) ** 2)))

    @hvd.elastic.run
    def train(state: Any) -> None:
        mine = [jax.tree_util.tree_map(np.asarray, each.slots) for each in state.inner[:2]]
        everyone = hvd.allgather_object(mine)
        same = all(
            np.array_equal(one, other)
            for each in everyone
            for one, other in zip(*map(jax.tree_util.tree_leaves, (mine, each)), strict=True)
        )
        state.begins.append((state.step, same, bool(np.any(mine[0][1]))))
        while state.step < STEPS:
            if (process, state.step) == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            random = np.random.default_rng(1000 * state.step + process)
            x = jnp.asarray(random.standard_normal((8, 5)), jnp.float32)
            for place, optimizer in enumerate(optimizers):
                params = state.params[place]
                changes, state.inner[place] = optimizer.update(
                    gradient(params, x), state.inner[place], params
                )
                state.params[place] = optax.apply_updates(params, changes)
            state.step += 1
            state.commit()

    params = [jnp.zeros(5) for _ in specs]
    inner = [optimizer.init(each) for optimizer, each in zip(optimizers, params, strict=True)]
    state = hvd.elastic.JaxState(step=0, begins=[], params=params, inner=inner)
    train(state)
    return [float(jnp.abs(each - goal).max()) for each in state.params], state.begins


@pytest.mark.slow
def test_a_new_process_gets_the_state_of_strategies() -> None:
    specs = ("diloco:4,momentum=0.5", "easgd:2", "gossip:ring", "gossip_async:ring")
    for distances, begins in farandole.run(trained, (specs,), np=2, min_np=2, max_np=2):
        assert begins == [(0, True, False), (KILLED[1], True, True)]
        assert max(distances) < 0.2, distances
