"""Trees from one rank to all; states of elastic jobs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

jax = pytest.importorskip("jax", reason="jax is not installed")


class Pair(NamedTuple):
    one: Any
    two: Any


def tree(rank: int) -> dict[str, Any]:
    jnp = jax.numpy
    return {
        "w": jnp.arange(6.0).reshape(2, 3) * (rank + 1),
        "half": jnp.ones(3, jnp.bfloat16) * rank,
        "key": jax.random.key(rank),
        "old key": jax.random.PRNGKey(rank),
        "flag": jnp.array([rank == 1, True]),
        "pair": Pair(np.full(2, rank, dtype=">i8"), [rank, float(rank), rank == 0, None]),
        "complex": jnp.ones((), jnp.complex64) * rank,
        "weak": jnp.asarray(1.5 + rank),
        "none": jnp.zeros((0, 3)),
        "text": f"rank {rank}",
        "function": abs,
    }


def test_a_tree_from_one_rank_to_all() -> None:
    def check(rank: int) -> None:
        import farandole.jax as hvd

        found, wanted, two = (
            hvd.broadcast_parameters(tree(rank), root_rank=1),
            tree(1),
            jax.numpy.ones(2),
        )
        assert (
            jax.random.key_data(found.pop("key")).tolist()
            == jax.random.key_data(wanted.pop("key")).tolist()
        )
        assert found.pop("text") == f"rank {rank}"  # neither an array nor a number
        assert found.pop("function") is wanted.pop("function")
        wanted.pop("text")
        assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(wanted)
        for one, other in zip(*map(jax.tree_util.tree_leaves, (found, wanted)), strict=True):
            assert type(one) is type(other)
            for what in ("dtype", "weak_type"):
                assert getattr(one, what, None) == getattr(other, what, None)
            assert np.array_equal(one, other)
        with pytest.raises(ValueError, match=mentioning("'w'", "(2,)", "rank 0", "(3,)")):
            hvd.broadcast_parameters({"w": jax.numpy.ones(2 + rank)})
        for other, text in (
            ({"w": two, "c": two}, ("\"['b']\"", "rank 0", "\"['c']\"", "rank 1")),
            ({"b": 5, "w": two}, ("'b'", "rank 0", "rank 1")),
            ({"w": two}, ("rank 0", "2", "rank 1", "'b'")),
        ):
            with pytest.raises(ValueError, match=mentioning(text)):
                hvd.broadcast_parameters({"b": two, "w": two} if rank == 0 else other)
        with pytest.raises(ValueError, match=mentioning("rank 0", "2", "rank 1", "'b'")):
            hvd.broadcast_parameters({"a": 1, "b": 2} if rank == 0 else {"a": 3})
        assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
        assert hvd.allgather_object(rank) == [0, 1]

    job(2, check)


def test_a_state_that_is_saved_restored_and_synchronised() -> None:
    def check(rank: int) -> None:
        import farandole.jax as hvd

        jnp = jax.numpy
        called = []
        state = hvd.JaxState(
            params={"w": jnp.ones(2) * rank}, seed=jax.random.key(rank), epoch=rank, seen=[rank]
        )
        state.register_reset_callbacks([lambda: called.append(rank)])
        state.sync()
        assert (state.params["w"].tolist(), state.epoch, state.seen) == ([0.0, 0.0], 0, [0])
        assert jax.random.key_data(state.seed).tolist() == [0, 0]
        donate = jax.jit(lambda tree: {"w": tree["w"] + 1}, donate_argnums=0)
        state.params, state.epoch = donate(state.params), 1
        state.seen.append(7)
        state.restore()
        assert (state.params["w"].tolist(), state.epoch, state.seen) == ([0.0, 0.0], 0, [0])
        state.params, state.epoch = donate(state.params), 1
        state.commit()
        state.params = donate(state.params)
        state.restore()
        assert (state.params["w"].tolist(), state.epoch) == ([1.0, 1.0], 1)
        if rank == 1:  # a rank that is new knows nothing yet
            state.params = {}
        state.sync()
        assert state.params["w"].tolist() == [1.0, 1.0]
        assert isinstance(state.params["w"], jax.Array)
        state.on_reset()
        assert called == [rank]

    job(2, check)


def test_a_state_with_an_optimizer() -> None:
    optax = pytest.importorskip("optax", reason="optax is not installed")

    def check(rank: int) -> None:
        import farandole.jax as hvd

        params = {"w": jax.numpy.ones(3) * (rank + 1)}
        optimizer = hvd.DistributedOptimizer(optax.adam(0.1), backward_passes_per_step=2)
        state = hvd.JaxState(params=params, opt_state=optimizer.init(params))
        state.sync()
        for _ in range(4):
            grads = hvd.grad(lambda p: (p["w"] ** 2).sum())(state.params)
            updates, state.opt_state = jax.jit(optimizer.update)(
                grads, state.opt_state, state.params
            )
            state.params = optax.apply_updates(state.params, updates)
        hvd.check_replicas((state.params, state.opt_state))

    job(2, check)


def test_gradients_pending_for_a_step_are_local_to_ranks() -> None:
    optax = pytest.importorskip("optax", reason="optax is not installed")

    def check(rank: int) -> list[float]:
        import farandole.jax as hvd

        params = {"w": jax.numpy.zeros(1)}
        optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), backward_passes_per_step=2)
        state = hvd.JaxState(opt_state=optimizer.init(params), epoch=rank)

        def step(gradient: float) -> float:
            updates, state.opt_state = optimizer.update(
                {"w": jax.numpy.full(1, gradient)}, state.opt_state, params
            )
            return float(updates["w"][0])

        step(1.0 + 2 * rank)
        state.sync()
        taken = step(5.0)
        step(1.0)
        if rank == 1:  # it counts otherwise: what rank 0 has is the best that is known
            state.opt_state = optimizer.init(params)
        state.sync()
        return [taken, step(5.0), state.epoch]

    for taken in job(2, check):
        assert taken == [-(1 + 3 + 5 + 5) / 4, -3.0, 0]
