"""The program of ``test_native`` on two ranks: JAX's own collectives, compared with collectives
over the host.

``native_program.py [PLATFORM]``: cpu (Gloo's collectives) or cuda (NCCL's).
"""

from __future__ import annotations

import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import farandole.jax as hvd
from farandole.cli.machine import visible_gpus
from farandole.jax import native

PLATFORM = sys.argv[1] if len(sys.argv) > 1 else "cpu"
jax.config.update("jax_platforms", PLATFORM)
if PLATFORM == "cpu":
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
else:
    jax.config.update("jax_default_matmul_precision", "float32")
    os.environ["NCCL_HOSTID"] = str(os.getpid())  # so that NCCL does not see that ranks share a GPU


def everything(x: Any) -> list[Any]:
    """Run all collectives in one compiled program."""
    return [
        *(hvd.allreduce(x, op=op) for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)),
        *hvd.grouped_allreduce([x, x * 2]),
        hvd.allgather(x),
        hvd.broadcast(x, 1),
        hvd.alltoall(x),
        hvd.reducescatter(x, op=hvd.Sum),
        *hvd.grouped_reducescatter([x, x]),
    ]


def multiples(x: Any) -> list[Any]:
    return [
        hvd.allreduce(x, op=op, prescale_factor=0.5, postscale_factor=3.0)
        for op in (hvd.Sum, hvd.Min)
    ]


def whole(x: Any) -> list[Any]:
    return [hvd.allreduce(x), hvd.reducescatter(x, op=hvd.Average), hvd.allreduce(x, op=hvd.Sum)]


def square_sum(x: Any) -> Any:
    return sum((each.astype(jnp.float32) ** 2).sum() for each in [*everything(x), *multiples(x)])


def same(found: Any, wanted: Any) -> None:
    for one, other in zip(
        jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(wanted), strict=True
    ):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if not jnp.issubdtype(one.dtype, jnp.floating):
            assert one.tolist() == other.tolist()
        np.testing.assert_allclose(
            np.asarray(one).astype(float), np.asarray(other).astype(float), rtol=2e-2
        )


def compare(x: Any) -> None:
    """Compare with collectives over the host, outside of programs and in a program; and compare
    gradients.
    """
    hvd.use_native(False)
    wanted, scaled = everything(x), multiples(x)
    hvd.use_native(True)
    same(everything(x), wanted)
    same(hvd.spmd(everything)(x), wanted)
    same(multiples(x), scaled)
    if jnp.issubdtype(x.dtype, jnp.floating):
        hvd.use_native(False)
        slope = jax.jit(jax.grad(square_sum))(x)
        hvd.use_native(True)
        same(hvd.spmd(jax.grad(square_sum))(x), slope)


def compare_whole(x: Any) -> None:
    """Compare integers whose sum overflows their type, or whose digits exceed a float's."""
    hvd.use_native(False)
    wanted = whole(x)
    hvd.use_native(True)
    same(whole(x), wanted)
    same(hvd.spmd(whole)(x), wanted)


def fails(call: Any, kind: type[Exception], text: str) -> None:
    try:
        call()
    except kind as error:
        if text in str(error):
            return
        raise
    raise AssertionError(f"not raised: {text}")


def collectives(rank: int) -> None:
    for dtype in ("float32", "bfloat16", "int32"):
        compare((jnp.arange(12).reshape(4, 3) % 5 + 1 + rank).astype(dtype))
    compare_whole(jnp.array([200, 255 - rank, rank, 100 * rank], jnp.uint8))
    compare_whole(jnp.array([2**24 + 1 + rank, -(2**31), 2**31 - 1 - rank, -3 * rank], jnp.int32))
    assert hvd.allreduce(jnp.full(1, 200, jnp.uint8)).tolist() == [200]
    fails(
        lambda: hvd.spmd(multiples)(jnp.arange(2)),
        ValueError,
        "prescale_factor",
    )
    fails(
        lambda: hvd.spmd(hvd.allreduce)(jnp.ones(2, bool)),
        ValueError,
        "averages and multiples of bool",
    )
    assert hvd.allreduce(jnp.array([rank == 0, True]), op=hvd.Max).tolist() == [True, True]
    assert hvd.reducescatter(jnp.array([False, rank == 0]), op=hvd.Sum).tolist() == [rank == 1]
    # operations that XLA lacks go over the host, and mistakes are reported as before
    assert hvd.allgather(jnp.arange(1 + rank)).tolist() == [0, 0, 1]
    assert hvd.reducescatter(jnp.arange(3.0)).tolist() == [[0.0, 1.0], [2.0]][rank]
    shapes = "Mismatched ALLREDUCE tensor shapes"
    fails(lambda: hvd.allreduce(jnp.ones(2 + rank), name="x"), hvd.HorovodInternalError, shapes)
    rows = "rows must be a multiple of the number of ranks (2) in a program of hvd.spmd"
    fails(lambda: hvd.spmd(hvd.reducescatter)(jnp.arange(3.0)), ValueError, rows)


def trained(rank: int, n: int, optimizer: Any, jit: Any) -> Any:
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(lambda w: ((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2).mean())(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    generator = np.random.default_rng(0)
    params = {"a": generator.standard_normal((4, 8)), "b": generator.standard_normal((8, 2))}
    params = jax.tree_util.tree_map(lambda each: jnp.asarray(each, jnp.float32), params)
    state, run = optimizer.init(params), jit(step)
    for _ in range(4):
        x, y = generator.standard_normal((12, 4)), generator.standard_normal((12, 2))
        params, state = run(params, state, np.array_split(x, n)[rank], np.array_split(y, n)[rank])
    return params


def main() -> None:
    hvd.init()
    mine = [hvd.local_rank() % max(visible_gpus(os.environ), 1)]
    hvd.init_distributed(local_device_ids=None if PLATFORM == "cpu" else mine)
    rank = hvd.rank()
    assert native.active() == (PLATFORM != "cpu")  # CPUs: only when asked for
    hvd.use_native(True)
    assert native.active()
    assert hvd.mesh().devices.shape == (2,)
    collectives(rank)
    distributed = hvd.DistributedOptimizer(optax.adam(0.05))
    found = trained(rank, 2, distributed, hvd.spmd)
    hvd.check_replicas(found)
    hvd.use_native(False)
    for other in (trained(rank, 2, distributed, jax.jit), trained(0, 1, optax.adam(0.05), jax.jit)):
        jax.tree_util.tree_map(
            lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5),
            found,
            other,
        )
    print("native: all as over the host")
    jax.distributed.shutdown()


main()
