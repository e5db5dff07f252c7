"""JAX's gradients through codecs, inside ``jit`` and outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.jax.test_optimizer import batch, loss, parameters
from tests.kits.messages import mentioning
from tests.run_job import job

jax = pytest.importorskip("jax", reason="jax is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
jnp = jax.numpy


def test_the_votes_of_all_ranks_by_argument_and_by_setting() -> None:
    def fn(rank: int) -> None:
        import farandole.jax as hvd

        params = parameters()
        own = [
            jax.tree_util.tree_leaves(jax.grad(loss)(params, *batch(0, other, 3)))
            for other in range(3)
        ]
        wanted = [np.sign(sum(map(np.sign, of_ranks))) for of_ranks in zip(*own, strict=True)]

        def check(found: Any) -> None:
            for one, other in zip(jax.tree_util.tree_leaves(found), wanted, strict=True):
                assert np.array_equal(one, other)

        plain = hvd.value_and_grad(loss, codec="sign")
        for both in (plain, jax.jit(plain), hvd.value_and_grad(loss)):
            for _ in range(2):
                check(both(params, *batch(0, rank, 3))[1])
        optimizer = hvd.DistributedOptimizer(optax.sgd(-1.0), codec="sign")
        updates, _ = optimizer.update(
            jax.grad(loss)(params, *batch(0, rank, 3)), optimizer.init(params), params
        )
        check(updates)

    job(3, fn, codec="sign")


def test_models_of_one_optimizer_keep_their_residuals_apart() -> None:
    """One model may be stepped in a compiled program, and one program may have initialised both."""

    def fn(rank: int) -> None:
        import farandole.jax as hvd
        from farandole.strategies.codecs.topk import TopK

        params, own = {"w": jnp.zeros(4)}, {"w": jnp.array([8.0, 5.0, 2.0, 1.0])}
        nothing = {"w": jnp.zeros(4)}
        if rank == 1:
            # it is never stepped
            hvd.DistributedOptimizer(optax.sgd(1.0), codec="topk:0.25").init(params)
        for codec in ("topk:0.25", TopK(0.25)):
            optimizer = hvd.DistributedOptimizer(optax.sgd(-1.0), codec=codec)
            begin, update = jax.jit(optimizer.init), jax.jit(optimizer.update)
            if rank == 1:
                begin(params)
            states = [begin(params), begin(params)]
            for wanted in ([8.0, 0, 0, 0], [0, 10.0, 0, 0]):
                found, states[0] = update(own, states[0], params)
                assert found["w"].tolist() == wanted
                found, states[1] = optimizer.update(nothing, states[1], params)
                assert found["w"].tolist() == [0.0] * 4
        exchanging = hvd.DistributedOptimizer(
            optax.identity(), strategy="local_sgd:1", codec="topk:0.25"
        )
        states = [exchanging.init(params), exchanging.init(params)]
        for _ in range(2):
            _, states[0] = exchanging.update(own, states[0], params)
            found, states[1] = exchanging.update(nothing, states[1], params)
            assert found["w"].tolist() == [0.0] * 4
        slope = hvd.grad(
            lambda tree: (tree["w"] * own["w"][: len(tree["w"])]).sum(), codec="topk:0.25"
        )
        found = [slope({"w": jnp.zeros(count)})["w"].tolist() for count in (4, 3, 4)]
        assert found == [[8.0, 0, 0, 0], [8.0, 0, 0], [0, 10.0, 0, 0]]

    job(2, fn)


def test_models_of_one_optimizer_vote_by_their_own_momentum() -> None:
    def fn(rank: int) -> None:
        import farandole.jax as hvd

        params, own = {"w": jnp.zeros(3)}, {"w": jnp.array([4.0, -4.0, 0.0])}
        optimizer = hvd.DistributedOptimizer(optax.sgd(-1.0), codec="sign:0.5")
        states = [optimizer.init(params), optimizer.init(params)]
        for factor, one, other in ((1.0, 1, 1), (-0.25, 1, -1), (-2.25, -1, -1)):
            # the second begins with the second gradient
            for place, wanted in enumerate((one, other)):
                if place == 0 or factor < 0:
                    found, states[place] = jax.jit(optimizer.update)(
                        {"w": factor * own["w"]}, states[place], params
                    )
                    assert found["w"].tolist() == [wanted, -wanted, 0]

    job(2, fn)


def test_multi_steps_around_a_stateful_optimizer_is_refused() -> None:
    """MultiSteps computes each pass and drops all but the last: a codec or a server would count
    them all.
    """

    def fn(rank: int) -> None:
        import farandole.jax as hvd

        params, own = {"w": jnp.zeros(4)}, {"w": jnp.array([8.0, 5.0, 2.0, 1.0])}

        def trained(**options: str) -> Any:
            optimizer = optax.MultiSteps(hvd.DistributedOptimizer(optax.sgd(-1.0), **options), 2)
            state, update = optimizer.init(params), jax.jit(optimizer.update)
            for _ in range(4):
                found, state = update(own, state, params)
            return found["w"].tolist()

        for options in ({"codec": "bf16"}, {"strategy": "gossip:complete"}):
            assert trained(**options) == [8.0, 5.0, 2.0, 1.0]
        for options in (
            {"codec": "topk:0.25"},
            {"strategy": "local_sgd:1", "codec": "topk:0.25"},
            {"strategy": "ps"},
        ):
            text = "step 2"
            with pytest.raises(ValueError, match=mentioning(text)), hvd.plain_errors():
                trained(**options)

    job(2, fn, store=True)


def test_an_optimizer_made_in_each_step_is_refused() -> None:
    def fn(rank: int) -> None:
        import farandole.jax as hvd
        from farandole.strategies.codecs.topk import TopK

        params, own = {"w": jnp.zeros(4)}, {"w": jnp.array([8.0, 5.0, 2.0, 1.0])}

        def trained(optimizer: Any, jitted: bool, steps: int = 4) -> Any:
            state, update = (
                optimizer.init(params),
                jax.jit(optimizer.update) if jitted else optimizer.update,
            )
            total = jnp.zeros(4)
            for _ in range(steps):
                found, state = update(own, state, params)
                total += found["w"]
            return total.tolist()

        def outside(**options: Any) -> Any:
            return optax.inject_hyperparams(
                lambda rate: hvd.DistributedOptimizer(optax.sgd(rate), **options)
            )(-1.0)

        wanted = [24.0, 20.0, 0.0, 0.0]
        inside = hvd.DistributedOptimizer(
            optax.inject_hyperparams(optax.sgd)(-1.0), codec="topk:0.25"
        )
        for jitted in (False, True):
            assert trained(inside, jitted) == wanted
            assert trained(outside(codec=TopK(0.25)), jitted) == wanted
        assert trained(outside(codec="topk:0.25"), True) == wanted
        assert trained(outside(codec="bf16"), False) == [32.0, 20.0, 8.0, 4.0]
        for options in (
            {"codec": "topk:0.25"},
            {"strategy": "local_sgd:1", "codec": "topk:0.25"},
            {"strategy": "ps"},
        ):
            with pytest.raises(ValueError, match=mentioning("steps 1, 2 and 3", "optimizers")):
                trained(outside(**options), False)
        state = inside.init(params)
        for _ in range(4):  # resumed from checkpoints
            _, state = inside.update(own, state, params)
            again, kept = (
                hvd.DistributedOptimizer(
                    optax.inject_hyperparams(optax.sgd)(-1.0), codec="topk:0.25"
                ),
                state,
            )
            for _ in range(2):
                _, kept = again.update(own, kept, params)

    job(2, fn, store=True)


def test_a_restored_commit_computes_the_step_again() -> None:
    """As in elastic programs after a failure: this is not a dropped pass."""
    import farandole.jax as hvd

    params, own = {"w": jnp.zeros(4)}, {"w": jnp.array([8.0, 5.0, 2.0, 1.0])}
    optimizer = hvd.DistributedOptimizer(optax.sgd(-1.0), codec="topk:0.25")
    hvd.init()
    try:
        _, state = optimizer.update(own, optimizer.init(params), params)
        optimizer.update(own, state, params)
        with pytest.raises(ValueError, match=mentioning("step 2", "exchanged")):
            optimizer.update(own, state, params)
        hvd.shutdown()
        hvd.init()
        optimizer.update(own, state, params)
    finally:
        hvd.shutdown()


def test_going_back_further_is_an_error() -> None:
    import farandole.jax as hvd
    from farandole.strategies.codecs.topk import TopK

    params, own = {"w": jnp.zeros(4)}, {"w": jnp.array([8.0, 5.0, 2.0, 1.0])}
    hvd.init()
    try:
        for codec, by_name in (("topk:0.25", True), (TopK(0.25), False), ("bf16", False)):
            optimizer = hvd.DistributedOptimizer(optax.sgd(-1.0), codec=codec)
            states = [optimizer.init(params)]
            for _ in range(4):
                states.append(optimizer.update(own, states[-1], params)[1])
            if by_name:
                with pytest.raises(ValueError, match=mentioning("step 3", "optimizer")):
                    optimizer.update(own, states[2], params)
            else:
                optimizer.update(own, states[2], params)
            # from the beginning, as a program that was run once to compile it
            optimizer.update(own, states[0], params)
    finally:
        hvd.shutdown()


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_codec_replaces_the_momentum_of_sgd(nesterov: bool) -> None:
    """With equal gradients of 1 and -1, which onebit sends exactly, steps grow to half of the
    momentum's sum: see ``codecs.momentum``.
    """

    def fn(rank: int) -> None:
        import farandole.jax as hvd

        sgd = optax.chain(
            optax.clip(9.0), optax.sgd(lambda step: 0.1, momentum=0.9, nesterov=nesterov)
        )
        optimizer = hvd.DistributedOptimizer(sgd, codec="onebit")
        params, given = {"w": jnp.zeros(3)}, {"w": jnp.array([1.0, -1.0, 1.0])}
        state, update = optimizer.init(params), jax.jit(optimizer.update)
        for _ in range(10):
            updates, state = update(given, state, params)
            params = optax.apply_updates(params, updates)
        moved = sum(min((1 - 0.9 ** (step + 1)) / 0.1, 5) for step in range(10))
        assert np.allclose(params["w"], -0.1 * moved * given["w"], rtol=1e-5)

    job(2, fn)


def test_the_facts_about_an_optimizer() -> None:
    from farandole.base.contracts import Momentum
    from farandole.jax.inner_optimizer import facts_of

    assert facts_of(optax.sgd(0.1, momentum=0.9, nesterov=True))[1:] == (
        0.1,
        Momentum(0.9, nesterov=True),
        False,
    )
    assert facts_of(optax.sgd(0.2))[1:] == (0.2, Momentum(), False)
    for adaptive in (optax.adamw(1e-3), optax.rmsprop(1e-3, momentum=0.9), optax.adagrad(0.1)):
        assert facts_of(adaptive)[2:] == (Momentum(), True)
    injected = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1, momentum=0.9)
    assert facts_of(injected)[1:] == (0.0, Momentum(), False)
