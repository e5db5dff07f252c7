"""Replicas of a JAX state: the arrays of real numbers in its trees."""

from __future__ import annotations

import pytest

from tests.kits.replicas import check_state
from tests.run_job import job

pytest.importorskip("jax", reason="JAX is not installed")


def test_arrays_in_trees_are_repaired() -> None:
    job(1, _body)


def _body(_: int) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import farandole.jax as hvd
    from farandole.jax.accumulation import AccumulationState

    params = {"dense": {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2, jnp.bfloat16)}}
    state = hvd.elastic.JaxState(
        params=params, moments=[jnp.ones(3)], key=jax.random.key(0), step=3, plain=np.ones(4)
    )
    check_state(state, ["params['dense']['kernel']", "bias", "moments[0]", "plain"])
    assert state.step == 3
    assert not [name for name in state.replicas() if name.startswith(("key", "step"))]
    waiting = AccumulationState(jnp.zeros((), int), params, ())
    assert list(hvd.elastic.JaxState(opt=waiting, x=jnp.ones(1)).replicas()) == ["x"]
