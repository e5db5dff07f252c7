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
