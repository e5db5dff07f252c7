"""n ranks with batch B/n take the steps of one rank with batch B; options of optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

jax = pytest.importorskip("jax", reason="jax is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
jnp = jax.numpy

BATCH = 12
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.05, momentum=0.9),
    "adam": lambda: optax.adam(0.01, eps=1e-4),
}


def parameters() -> Any:
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    return {
        "embedding": jax.random.normal(keys[0], (20, 5)),
        "hidden": {"kernel": jax.random.normal(keys[1], (5, 7)) / 2, "bias": jnp.zeros(7)},
        "out": [jax.random.normal(keys[2], (7, 2)) / 2, jnp.zeros(2)],
    }


def loss(params: Any, tokens: Any, y: Any) -> Any:
    x = params["embedding"][tokens].mean(1)  # some rows only, some twice
    x = jnp.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return ((x @ params["out"][0] + params["out"][1] - y) ** 2).mean()


def batch(step: int, rank: int, n: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(step)
    tokens, y = (
        generator.integers(0, 20, (BATCH, 3)),
        generator.standard_normal((BATCH, 2)).astype(np.float32),
    )
    return np.array_split(tokens, n)[rank], np.array_split(y, n)[rank]


def trained(
    rank: int, n: int, optimizer: Any, value_and_grad: Any = jax.value_and_grad, steps: int = 4
) -> Any:
    params = parameters()
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, tokens: Any, y: Any) -> Any:
        value, grads = value_and_grad(loss)(params, tokens, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    for number in range(steps):
        params, state, _ = step(params, state, *batch(number, rank, n))
    return jax.tree_util.tree_map(np.asarray, params)


def assert_close(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    jax.tree_util.tree_map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance),
        found,
        wanted,
    )


def assert_replicas(results: list[Any]) -> None:
    for other in results[1:]:
        assert jax.tree_util.tree_all(jax.tree_util.tree_map(np.array_equal, results[0], other)), (
            "the same bits"
        )


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training(kind: str, n: int) -> None:
    """With the optimizer, in a chain, and with the gradient transformation."""

    def fn(rank: int) -> dict[str, Any]:
        import farandole.jax as hvd

        make = OPTIMIZERS[kind]
        found = {
            "optimizer": trained(rank, n, hvd.DistributedOptimizer(make())),
            "gradients": trained(rank, n, make(), hvd.value_and_grad),
        }
        if (kind, n) == ("momentum", 2):
            found["chain"] = trained(rank, n, optax.chain(hvd.distributed_gradients(), make()))
            found["predivide"] = trained(
                rank, n, hvd.DistributedOptimizer(make(), gradient_predivide_factor=2.0)
            )
            scaled = optax.chain(
                hvd.distributed_gradients(op=hvd.Sum, name="summed"), optax.scale(1 / n), make()
            )
            found["sum"] = trained(rank, n, scaled)
        return found

    results = job(n, fn)
    wanted = trained(0, 1, OPTIMIZERS[kind]())
    for way in results[0]:
        assert_replicas([result[way] for result in results])
        assert_close(results[0][way], wanted)


def test_passes_are_added_up_and_exchanged_once() -> None:
    def fn(rank: int) -> Any:
        import farandole.jax as hvd
        from farandole.strategies.list_reducer import GradientListReducer

        original, starts = GradientListReducer.start, []

        def start(self: Any, *args: Any, **kwargs: Any) -> Any:
            starts.append(self.name)
            return original(self, *args, **kwargs)

        GradientListReducer.start = start
        try:
            found = [
                trained(
                    rank,
                    2,
                    hvd.DistributedOptimizer(optax.adam(0.01), backward_passes_per_step=3, **more),
                    steps=6,
                )
                for more in ({}, {"average_aggregated_gradients": False})
            ]
        finally:
            GradientListReducer.start = original
        return found, len(starts)

    results = job(2, fn)
    assert [count for _, count in results] == [4, 4]
    assert_replicas([found for found, _ in results])
    for mean in (True, False):
        steps = optax.MultiSteps(optax.adam(0.01), 3, use_grad_mean=mean).gradient_transformation()
        assert_close(results[0][0][not mean], trained(0, 1, steps, steps=6))


def test_outside_of_jit() -> None:
    def fn(rank: int) -> None:
        import farandole.jax as hvd

        w = jnp.arange(3.0)
        for passes in (1, 2):
            optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), backward_passes_per_step=passes)
            state = optimizer.init(w)
            for number in range(1, 5):
                updates, state = optimizer.update(w * (rank + 1) * number, state, w)
                if number % passes:
                    assert updates.tolist() == [0.0] * 3
                else:
                    mean = number - (passes - 1) / 2  # of the updates since the last step
                    np.testing.assert_allclose(updates, -1.5 * mean * w)

    job(2, fn)


def test_compression_adasum_and_a_set() -> None:
    def fn(rank: int) -> Any:
        import farandole.jax as hvd

        pair = hvd.add_process_set([0, 1])
        small = hvd.DistributedOptimizer(optax.sgd(0.1), compression=hvd.Compression.bf16)
        combined = hvd.DistributedOptimizer(optax.sgd(0.1), op=hvd.Adasum)
        apart = hvd.DistributedOptimizer(optax.sgd(0.1), process_set=pair)
        gradients = jax.tree_util.tree_map(lambda each: each * (rank + 1.0), parameters())
        updates, _ = jax.jit(lambda grads: combined.update(grads, combined.init(grads)))(gradients)
        want = hvd.grouped_allreduce(
            [-0.1 * each for each in jax.tree_util.tree_leaves(gradients)], op=hvd.Adasum
        )
        assert_close(jax.tree_util.tree_leaves(updates), want)
        return trained(rank, 3, small), trained(min(rank, 1), 2, apart)

    results = job(3, fn, dynamic_process_sets=True)
    assert_replicas([small for small, _ in results])
    assert_close(results[0][0], trained(0, 1, optax.sgd(0.1)), 0.02)
    assert_replicas([apart for _, apart in results[:2]])
    assert_close(results[0][1], trained(0, 1, optax.sgd(0.1)))
    assert_close(results[2][1], trained(1, 2, optax.sgd(0.1)))  # outside: by its own gradients


def test_gradients_as_jax_gives_them() -> None:
    def fn(rank: int) -> None:
        import farandole.jax as hvd

        def squared(w: Any, b: Any, scale: float = 1.0) -> Any:
            """Its documentation."""
            return (w**2).sum() * scale * (rank + 1) + b, {"rank": rank}

        w, b = jnp.arange(3.0), jnp.float32(1)
        step = hvd.value_and_grad(squared, (0, 1), has_aux=True)
        assert step.__doc__ == "Its documentation."
        for run in (step, jax.jit(step)):
            (value, aux), (dw, db) = run(w, b, scale=2.0)
            assert (float(value), int(aux["rank"])) == (10.0 * (rank + 1) + 1, rank)
            assert (dw.tolist(), db.tolist()) == ([0.0, 6.0, 12.0], 1.0)
        dw, aux = hvd.grad(squared, has_aux=True, op=hvd.Sum)(w, b)
        assert (dw.tolist(), aux["rank"]) == ([0.0, 6.0, 12.0], rank)
        assert hvd.grad(lambda w: (w * (rank + 1.0)).sum())(w).tolist() == [1.5] * 3
        whole = hvd.grad(lambda tree: (tree["x"] ** 2).sum(), allow_int=True)(
            {"n": 3, "x": w * rank, "none": None}
        )
        assert (whole["x"].tolist(), whole["none"], whole["n"].dtype) == (
            [0.0, 1.0, 2.0],
            None,
            jax.dtypes.float0,
        )
        both = (
            hvd.value_and_grad(lambda w: (w**2).sum(), name="b"),
            hvd.value_and_grad(lambda w: w.sum(), name="a"),
        )
        first = [jax.jit(step)(w * (rank + 1))[1].tolist() for step in both]
        assert first == [[0.0, 3.0, 6.0], [1.0] * 3]
        assert jax.vmap(hvd.grad(lambda x: x**2 * (rank + 1.0)))(w).tolist() == [0.0, 3.0, 6.0]

    job(2, fn)


def test_a_scan_over_steps() -> None:
    def fn(rank: int) -> Any:
        import farandole.jax as hvd

        optimizer = hvd.DistributedOptimizer(optax.adam(0.01, eps=1e-4))
        params = parameters()
        batches = [batch(step, rank, 2) for step in range(4)]
        stacked = tuple(np.stack(each) for each in zip(*batches, strict=True))

        def step(carry: Any, data: Any) -> Any:
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params, *data)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), hvd.allreduce(value)

        run = jax.jit(
            lambda params, state: jax.lax.scan(step, (params, state), stacked),
            donate_argnums=(0, 1),
        )
        (params, _), values = run(params, optimizer.init(params))
        hvd.check_replicas(params)
        return jax.tree_util.tree_map(np.asarray, params), values.tolist()

    results = job(2, fn)
    assert results[0][1] == results[1][1]
    assert_close(results[0][0], trained(0, 1, optax.adam(0.01, eps=1e-4)))


def test_replicas_that_have_become_different_are_found() -> None:
    def fn(rank: int) -> None:
        import farandole.jax as hvd

        local = trained(rank, 2, optax.sgd(0.1))
        with pytest.raises(ValueError, match=mentioning("'embedding'", "rank 0")):
            hvd.check_replicas(local)
        hvd.check_replicas(trained(rank, 2, hvd.DistributedOptimizer(optax.sgd(0.1))))
        hvd.check_replicas(hvd.broadcast_parameters(local, root_rank=1))

    job(2, fn)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"gradient_predivide_factor": 2.0, "op": 1},
            ("gradient_predivide_factor", "Average"),
        ),
        ({"gradient_predivide_factor": -1.0}, ("gradient_predivide_factor", "0")),
        ({"backward_passes_per_step": 0}, ("backward_passes_per_step", "0")),
        ({"op": 3}, ("Average", "Sum", "Adasum")),
    ],
)
def test_arguments_that_cannot_be(options: dict[str, Any], text: str | tuple[str, ...]) -> None:
    import farandole.jax as hvd

    with pytest.raises(ValueError, match=mentioning(text)):
        hvd.DistributedOptimizer(optax.sgd(0.1), **options)
