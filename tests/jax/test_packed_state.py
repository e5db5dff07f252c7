"""The state of a training with JAX that is packed, and continues in another process."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

from farandole.jax.state import JaxState  # noqa: E402
from tests.kits.messages import mentioning  # noqa: E402


def test_trees_continue_from_a_packed_state() -> None:
    jnp = jax.numpy
    params = {"w": jnp.arange(3.0), "half": jnp.ones(2, jnp.bfloat16)}
    state = JaxState(params=params, key=jax.random.key(7), table=np.ones(2), step=5)
    state.save()
    packed = state.to_bytes(state.saved_values())
    nothing = jax.tree_util.tree_map(jnp.zeros_like, params)
    other = JaxState(params=nothing, key=jax.random.key(0), table=np.zeros(2), step=0)
    other.from_bytes(packed)
    for mine, theirs in zip(
        jax.tree_util.tree_leaves(params), jax.tree_util.tree_leaves(other.params), strict=True
    ):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
    assert (jax.random.uniform(state.key), other.step) == (jax.random.uniform(other.key), 5)
    assert other.table.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match=mentioning("params", "weights")):
        JaxState(weights=params).from_bytes(packed)


def test_a_commit_of_another_model_is_refused() -> None:
    jnp = jax.numpy

    def state(width: int, seen: int = 1) -> JaxState:
        params = {"w": jnp.ones((2, width)), "b": jnp.zeros(width)}
        return JaxState(params=params, seen=jnp.ones(seen), losses=[jnp.ones(())] * seen)

    packed = state(3, 4).to_bytes(state(3, 4).saved_values())
    grown = state(3)
    grown.from_bytes(packed)
    assert (grown.seen.shape, len(grown.losses)) == ((4,), 4)
    with pytest.raises(ValueError, match=mentioning("params['", "3", "5")):
        state(5).from_bytes(packed)
    deeper = state(3)
    deeper.params = {**deeper.params, "new": jnp.ones(1)}
    deeper.save()
    with pytest.raises(ValueError, match=mentioning("params['new']")):
        deeper.from_bytes(packed)
