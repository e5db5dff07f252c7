"""Optimizers whose ranks exchange weights at intervals, in jit and outside."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from farandole.strategies.modes.local_sgd import LocalSGD
from farandole.strategies.modes.parameter_server import ParameterServer
from tests.jax.test_optimizer import (
    OPTIMIZERS,
    assert_close,
    assert_replicas,
    batch,
    loss,
    parameters,
    trained,
)
from tests.kits.messages import mentioning
from tests.run_job import job

STEPS = 5


def by_hand(rank: int, n: int, optimizer: Any, steps: int = STEPS) -> Any:
    """Without jit."""
    params = parameters()
    state = optimizer.init(params)
    for number in range(steps):
        _, grads = jax.value_and_grad(loss)(params, *batch(number, rank, n))
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return jax.tree_util.tree_map(np.asarray, params)


def model(n: int, kind: str, every: int, outer: bool = False) -> list[Any]:
    """Local SGD in one process; ``outer``: with Nesterov momentum of 0.5, and rate 0.7."""
    each_of, make = jax.tree_util.tree_map, OPTIMIZERS[kind]
    ranks = [parameters() for _ in range(n)]
    states = [make().init(params) for params in ranks]
    anchor, velocity = parameters(), each_of(jnp.zeros_like, parameters())
    for step in range(1, STEPS + 1):
        for rank in range(n):
            _, grads = jax.value_and_grad(loss)(ranks[rank], *batch(step - 1, rank, n))
            updates, states[rank] = make().update(grads, states[rank], ranks[rank])
            ranks[rank] = optax.apply_updates(ranks[rank], updates)
        if step % every == 0:
            mean = each_of(lambda *column: sum(column) / n, *ranks)
            if outer:
                way = each_of(lambda old, new: old - new, anchor, mean)
                velocity = each_of(lambda kept, new: 0.5 * kept + new, velocity, way)
                ahead = each_of(lambda new, kept: new + 0.5 * kept, way, velocity)
                mean = anchor = each_of(lambda old, part: old - 0.7 * part, anchor, ahead)
            ranks = [mean] * n
    return ranks


def test_complex_weights_are_exchanged_like_their_parts() -> None:
    def fn(rank: int) -> None:
        import farandole.jax as hvd

        for strategy in ("local_sgd:1", LocalSGD(1, outer="momentum", momentum=0.0)):
            optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), strategy=strategy)
            params = {"c": jnp.full((2, 1), 1j, jnp.complex64), "w": jnp.zeros(2)}
            grads = {"c": jnp.full((2, 1), rank * (-2 + 4j)), "w": jnp.full(2, -2.0 * rank)}
            updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(params), params)
            ends = optax.apply_updates(params, updates)
            assert ends["c"].tolist() == [[1 - 1j]] * 2
            assert ends["w"].tolist() == [1.0] * 2

    job(2, fn)


def test_local_sgd_is_its_model() -> None:
    def fn(rank: int) -> dict[str, Any]:
        import farandole.jax as hvd

        nesterov = LocalSGD(2, outer="nesterov", lr=0.7, momentum=0.5)
        return {
            "jit": trained(
                rank,
                2,
                hvd.DistributedOptimizer(OPTIMIZERS["adam"](), strategy="local_sgd:2"),
                steps=STEPS,
            ),
            "hand": by_hand(
                rank, 2, hvd.DistributedOptimizer(OPTIMIZERS["adam"](), strategy=LocalSGD(2))
            ),
            "outer": trained(
                rank,
                2,
                hvd.DistributedOptimizer(OPTIMIZERS["adam"](), strategy=nesterov, codec="topk:1"),
                steps=STEPS,
            ),  # a codec that leaves out nothing
            "outer by hand": by_hand(
                rank, 2, hvd.DistributedOptimizer(OPTIMIZERS["adam"](), strategy=nesterov)
            ),
        }

    for found, plain, outer in zip(
        job(2, fn), model(2, "adam", 2), model(2, "adam", 2, True), strict=True
    ):
        assert_close(found["jit"], plain)
        assert_close(found["hand"], plain)
        assert_close(found["outer"], outer)
        assert_close(found["outer by hand"], outer)


def test_complete_gossip_averages_gradients() -> None:
    """Also with a codec that omits nothing."""

    def fn(rank: int) -> tuple[Any, Any, Any]:
        import farandole.jax as hvd

        return tuple(
            trained(
                rank, 3, hvd.DistributedOptimizer(optax.sgd(0.1), strategy=strategy, codec=codec)
            )
            for strategy, codec in (
                ("gossip:complete", ""),
                ("gossip:complete,gamma=1", "topk:1"),
                ("allreduce", ""),
            )
        )

    results = job(3, fn)
    assert_replicas([reduced for *_, reduced in results])
    for gossiped, coded, reduced in results:
        assert_close(gossiped, reduced)
        assert_close(coded, reduced)


def test_half_types_integers_and_updates_without_weights() -> None:
    def fn(rank: int) -> None:
        import farandole.jax as hvd

        params = {"half": jnp.zeros(3, jnp.bfloat16), "whole": jnp.arange(3), "wide": jnp.zeros(2)}
        optimizer = hvd.DistributedOptimizer(
            optax.identity(), strategy=LocalSGD(1, outer="momentum", momentum=0.0)
        )
        state = optimizer.init(params)
        updates = {
            "half": jnp.full(3, 2.0 * rank, jnp.bfloat16),
            "whole": jnp.ones(3, int),
            "wide": jnp.full(2, rank + 1.0),
        }
        found, state = jax.jit(optimizer.update)(updates, state, params)
        assert found["half"].dtype == jnp.bfloat16
        assert (found["half"].tolist(), found["whole"].tolist(), found["wide"].tolist()) == (
            [1] * 3,
            [1] * 3,
            [1.5] * 2,
        )
        assert int(state.step) == 1
        with pytest.raises(ValueError, match=mentioning("update()", "weights")):
            optimizer.update(updates, state)
        with pytest.raises(ValueError, match=mentioning("'local_sgd:epoch'", "weights")):
            hvd.DistributedOptimizer(optax.identity(), strategy="local_sgd:epoch")
        for fails in (hvd.distributed_gradients, lambda: hvd.value_and_grad(loss)):
            with pytest.raises(
                ValueError, match=mentioning("strategy='easgd:8,beta=0.9'", "weights")
            ):
                fails()

    job(2, fn, strategy="easgd")


def test_an_optimizer_of_no_weights_exchanges_nothing() -> None:
    def fn(rank: int) -> None:
        import farandole.jax as hvd

        params = [jnp.zeros(2), jnp.zeros(3)]
        labels = ["one", "one"]  # and none has the other
        both = {
            name: hvd.DistributedOptimizer(optax.sgd(1.0), strategy="local_sgd:1")
            for name in ("one", "other")
        }
        optimizer = optax.multi_transform(both, labels)
        gradients = [jnp.full(2, 2.0 * rank), jnp.full(3, -2.0 * rank)]
        for update in (optimizer.update, jax.jit(optimizer.update)):
            updates, _ = update(gradients, optimizer.init(params), params)
            assert [update.tolist() for update in updates] == [[-1.0] * 2, [1.0] * 3]

    job(2, fn)


def models_of_one_optimizer(hvd: Any, rank: int) -> None:
    """Each has a centre with its momentum, also where arrays have the same shapes."""
    optimizer = hvd.DistributedOptimizer(
        optax.sgd(1.0), strategy=ParameterServer(optimizer="momentum", lr=1.0)
    )
    begins = [jnp.zeros(2), jnp.full(2, 100.0), jnp.zeros(3)]
    models = [(params, optimizer.init(params)) for params in begins]
    for _ in range(3):
        for place, (params, state) in enumerate(models):
            gradients = jnp.full(len(params), place * (1.0 + rank))
            updates, state = jax.jit(optimizer.update)(gradients, state, params)
            models[place] = optax.apply_updates(params, updates), state
    ways = [(params - begin).tolist() for (params, _), begin in zip(models, begins, strict=True)]
    momentum = 1 + 1.9 + 2.71  # what three equal steps are with momentum of 0.9
    for place, way in enumerate(ways):
        np.testing.assert_allclose(way, [-2.0 * place * momentum] * len(way), rtol=1e-6)


def test_background_strategies_keep_all_changes() -> None:
    def fn(rank: int) -> tuple[Any, ...]:
        import farandole.jax as hvd

        models_of_one_optimizer(hvd, rank)
        ends = tuple(
            trained(
                rank, 3, hvd.DistributedOptimizer(optax.sgd(0.1), strategy=strategy, codec=codec)
            )
            for strategy, codec in (("ps", ""), ("ps", "threshold:1e-30"), ("allreduce", ""))
        )
        optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), strategy="ps_async")
        params = jnp.zeros(2)
        state = optimizer.init(params)
        for _ in range(1 + 3 * rank):
            updates, state = jax.jit(optimizer.update)(jnp.ones(2), state, params)
            params = optax.apply_updates(params, updates)
        hvd.barrier()
        updates, state = jax.jit(optimizer.update)(jnp.zeros(2), state, params)
        assert optax.apply_updates(params, updates).tolist() == [-(1.0 + 4.0 + 7.0)] * 2
        optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), strategy="gossip_async")
        params, update = jnp.zeros(2), jax.jit(optimizer.update)
        state = optimizer.init(params)
        for step in range(500):  # until all have what all have learned
            updates, state = update(jnp.ones(2) * (step <= 3 * rank), state, params)
            params = optax.apply_updates(params, updates)
            if step > 6 and np.ptp(hvd.allgather(params)) < 1e-5:
                break
        np.testing.assert_allclose(params, -4.0, atol=1e-4)
        return ends

    for found, pushed, reduced in job(3, fn, store=True):
        assert_close(found, reduced)
        assert_close(pushed, reduced)
