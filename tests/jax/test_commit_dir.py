"""Training with strategies that continues from the folder of an earlier job, with JAX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.run_job import job

jax = pytest.importorskip("jax", reason="JAX is not installed")

STEPS, CUT = 9, 6  # the cut is between two exchanges
SPECS = ("diloco:4,momentum=0.5", "easgd:4", "ps:1,optimizer=adam,lr=0.01")


def trained(steps: int, folder: Path | None = None) -> list[Any]:
    """Return each rank's parameters after all steps up to ``steps``."""

    def body(rank: int) -> Any:
        import jax.numpy as jnp
        import optax

        import farandole.jax as hvd

        optimizers = [hvd.DistributedOptimizer(optax.adam(0.05), strategy=spec) for spec in SPECS]
        gradient = jax.jit(jax.grad(lambda params, x: jnp.mean((x @ params - x[:, 0] ** 2) ** 2)))

        @hvd.elastic.run
        def train(state: Any) -> None:
            while state.step < steps:
                random = np.random.default_rng(1000 * state.step + rank)
                x = jnp.asarray(random.standard_normal((8, 5)), jnp.float32)
                for place, optimizer in enumerate(optimizers):
                    params = state.params[place]
                    changes, state.inner[place] = optimizer.update(
                        gradient(params, x), state.inner[place], params
                    )
                    state.params[place] = optax.apply_updates(params, changes)
                state.step += 1
                state.commit()

        params = [jnp.zeros(5) for _ in SPECS]
        inner = [optimizer.init(each) for optimizer, each in zip(optimizers, params, strict=True)]
        state = hvd.elastic.JaxState(step=0, params=params, inner=inner)
        train(state)
        return [np.asarray(each).tolist() for each in state.params]

    path = "" if folder is None else str(folder)
    return job(2, body, store=True, commit_dir=path, commit_dir_seconds=1000.0)


def test_a_job_that_is_started_again_continues_exactly(tmp_path: Path) -> None:
    expected = trained(STEPS)
    trained(CUT, tmp_path)
    for mine, theirs in zip(trained(STEPS, tmp_path), expected, strict=True):
        assert dict(zip(SPECS, mine, strict=True)) == dict(zip(SPECS, theirs, strict=True))
