"""Gradients of the collectives, and transformations of functions with collectives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

pytest.importorskip("jax", reason="jax is not installed")


def test_gradients() -> None:
    """Compared with the definition, for the sum of the ranks' losses ``sum(weight * output)``."""
    n = 3

    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        xs = [jnp.asarray([[3.0, -1.0], [0.5, 2.0], [-4.0, 1.5]]) * (1 + each) for each in range(n)]
        weights = [jnp.arange(1.0, 19).reshape(9, 2) * (each + 1) for each in range(n)]
        x, weight = xs[rank], weights[rank]
        tops = [weights[each][:3] for each in range(n)]

        def gradient(function: Any, every_way: bool = False, **options: Any) -> Any:
            def loss(x: Any) -> Any:
                out = function(x, **options)
                return (weight[: len(out)] * out).sum()

            found = jax.jit(jax.grad(loss))(x)
            for other in (
                (jax.grad(loss), jax.grad(jax.jit(loss)), jax.grad(jax.checkpoint(loss)))
                if every_way
                else ()
            ):
                np.testing.assert_allclose(other(x), found, rtol=1e-6)
            return found

        def same(found: Any, wanted: Any) -> None:
            np.testing.assert_allclose(found, wanted, rtol=1e-5)

        total = sum(tops)
        same(gradient(hvd.allreduce, every_way=True), total / n)
        same(
            gradient(hvd.allreduce, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
            total * 1.5,
        )
        best = jnp.stack(xs).max(0)
        same(gradient(hvd.allreduce, every_way=True, op=hvd.Max), jnp.where(x == best, total, 0))
        same(
            gradient(hvd.allreduce, op=hvd.Min, prescale_factor=-2.0),
            jnp.where(x == best, total, 0) * -2,
        )
        both = jax.jit(
            lambda pair: hvd.grouped_allreduce(
                pair, op=hvd.Min, prescale_factor=0.5, postscale_factor=2.0
            )
        )([jnp.array([3, 5]) + rank, x[:, 0] * 3])
        # halves of whole numbers are cut off
        assert (both[0].tolist(), both[0].dtype) == ([2, 4], jnp.int32)
        same(both[1], jnp.stack(xs)[..., 0].min(0) * 3)
        # ties; times nothing
        same(gradient(lambda x: hvd.allreduce(x * 0, op=hvd.Max) + x), tops[rank])
        same(
            gradient(lambda x: hvd.allreduce(x**0 * x.sum(), op=hvd.Max))[0, 0],
            total.sum() if rank == n - 1 else 0,
        )
        others = jnp.prod(jnp.stack([each for place, each in enumerate(xs) if place != rank]), 0)
        same(gradient(hvd.allreduce, op=hvd.Product), total * others)
        same(gradient(hvd.allgather, every_way=True), (sum(weights) / n)[3 * rank : 3 * rank + 3])
        same(
            gradient(lambda x: hvd.grouped_allgather([x, x * 2])[1]),
            2 * (sum(weights) / n)[3 * rank : 3 * rank + 3],
        )
        same(gradient(hvd.broadcast, root_rank=1), total / n if rank == 1 else jnp.zeros((3, 2)))
        back = jnp.stack([weights[each][rank] for each in range(n)])
        same(gradient(hvd.alltoall), back)
        rows = jnp.concatenate([each[:1] for each in weights])
        same(gradient(hvd.reducescatter), rows)
        same(gradient(hvd.reducescatter, op=hvd.Sum, postscale_factor=0.5), rows * 1.5)
        same(gradient(lambda x: hvd.grouped_reducescatter([x, x])[1]), rows)
        uneven = jax.jit(jax.grad(lambda x: hvd.reducescatter(x)[:1].sum()))(jnp.ones(4))
        assert uneven.tolist() == [1.0, 0.0, 1.0, 1.0]
        same(gradient(hvd.allreduce, compression=hvd.Compression.bf16), total / n)

    job(n, check)


def test_gradients_where_shapes_differ_between_ranks() -> None:
    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        x = jnp.arange(2.0 + rank)
        assert jax.grad(lambda x: (hvd.allgather(x) ** 2).sum())(x).tolist() == (2 * x).tolist()
        y = jnp.arange(4.0)
        dealt = jax.grad(lambda y: (hvd.alltoall(y, [1, 3])[0] * (rank + 1)).sum())(y)
        assert dealt.tolist() == [1.0, 2.0, 2.0, 2.0]
        gathered = jax.grad(lambda y: (hvd.gather(y, 1) * (rank + 1)).sum())(y)
        assert gathered.tolist() == [2.0] * 4
        ragged = jax.grad(lambda x: (hvd.alltoall(x) * (rank + 1)).sum())(jnp.zeros(2 + 4 * rank))
        assert ragged.tolist() == [1.0] * (1 + 2 * rank) + [2.0] * (1 + 2 * rank)
        value = jax.grad(lambda x, k: (x * hvd.allreduce(k, op=hvd.Sum)).sum())(y, jnp.int32(3))
        assert value.tolist() == [6.0] * 4

    job(2, check)


def test_vmap_scan_cond_and_while() -> None:
    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        x = jnp.arange(12.0).reshape(2, 3, 2) * (rank + 1)
        both = [jnp.arange(12.0).reshape(2, 3, 2) * each for each in (1, 2)]
        for axis in (0, 1, 2):
            for function in (
                hvd.allreduce,
                lambda y: hvd.broadcast(y, 1),
                hvd.allgather,
                hvd.reducescatter,
            ):
                lanes = [jnp.moveaxis(each, axis, 0) for each in both]
                if function is hvd.allgather:
                    wanted = jnp.concatenate(lanes, 1)
                elif function is hvd.reducescatter:
                    mean = (lanes[0] + lanes[1]) / 2
                    wanted = jnp.stack([jnp.array_split(lane, 2)[rank] for lane in mean])
                else:
                    wanted = (
                        lanes[1] if function not in (hvd.allreduce,) else (lanes[0] + lanes[1]) / 2
                    )
                for mapped in (jax.vmap(function, axis), jax.jit(jax.vmap(function, axis))):
                    np.testing.assert_allclose(mapped(x), wanted)
        even = jnp.arange(8.0).reshape(2, 4) * (rank + 1)
        mine = even[:, rank * 2 : rank * 2 + 2] / (rank + 1)
        dealt = jnp.concatenate([mine, mine * 2], 1)
        np.testing.assert_allclose(jax.jit(jax.vmap(hvd.alltoall))(even), dealt)
        mapped = jax.vmap(jax.grad(lambda y: (hvd.allreduce(y) ** 2).sum()))(x)
        np.testing.assert_allclose(mapped, both[0] * 3)

        def step(carry: Any, row: Any) -> Any:
            carry = hvd.allreduce(carry + row, op=hvd.Sum)
            return carry, hvd.allreduce(carry, op=hvd.Max)

        rows = jnp.ones((3, 2)) * (rank + 1)
        last, every = jax.jit(lambda rows: jax.lax.scan(step, jnp.zeros(2), rows))(rows)
        assert (last.tolist(), every[:, 0].tolist()) == ([21.0, 21.0], [3.0, 9.0, 21.0])
        slope = jax.jit(jax.grad(lambda rows: jax.lax.scan(step, jnp.zeros(2), rows)[0].sum()))(
            rows
        )
        assert slope[:, 0].tolist() == [8.0, 4.0, 2.0]

        def chosen(x: Any) -> Any:
            return jax.lax.cond(
                x[0] > 0, lambda: hvd.allreduce(x), lambda: hvd.allreduce(x, op=hvd.Sum)
            )

        assert jax.jit(chosen)(jnp.ones(2) * (rank + 1)).tolist() == [1.5, 1.5]
        assert jax.jit(chosen)(-jnp.ones(2)).tolist() == [-2.0, -2.0]
        assert (
            jax.jit(
                lambda x: jax.lax.fori_loop(0, 3, lambda _, c: hvd.allreduce(c, op=hvd.Sum), x)
            )(1.0)
            == 8.0
        )
        assert (
            jax.jit(
                lambda x: jax.lax.while_loop(
                    lambda c: c < 9, lambda c: hvd.allreduce(c, op=hvd.Sum), x
                )
            )(1.0)
            == 16
        )

    job(2, check)


def test_unsupported_transformations_raise() -> None:
    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        x = jnp.arange(4.0)
        with pytest.raises(NotImplementedError, match=mentioning("allreduce()")):
            jax.vmap(lambda x: hvd.allreduce(x, op=hvd.Adasum))(x.reshape(2, 2))
        with pytest.raises(NotImplementedError, match=mentioning("allreduce_async")):
            jax.grad(lambda x: hvd.synchronize(hvd.allreduce_async(x)).sum())(x)
        with pytest.raises(ValueError, match=mentioning("real and imaginary")):
            jax.jit(hvd.allreduce)(x * 1j)
        with pytest.raises(ValueError, match=mentioning("complex64", "type")):
            hvd.allreduce(x * 1j)
        with pytest.raises(ValueError, match=mentioning("jit", "rows")):
            jax.jit(lambda x: hvd.alltoall(x, [2, 2]))(x)
        with pytest.raises(ValueError, match=mentioning("splits", "numbers")):
            jax.jit(hvd.alltoall)(x, jnp.asarray([2, 2]))
        with pytest.raises(ValueError, match=mentioning("multiple", "workers")):
            jax.jit(hvd.alltoall)(x[:3])
        with pytest.raises(ValueError, match="rank-zero tensor"):
            jax.jit(hvd.allgather)(x[0])
        with pytest.raises(ValueError, match="rank-zero tensor"):
            jax.vmap(hvd.allgather)(x)
        with pytest.raises(ValueError, match=mentioning("jit", "rows")):
            jax.vmap(lambda x: hvd.alltoall(x, [1, 1])[0])(x.reshape(2, 2))
        with pytest.raises(ValueError, match=mentioning("training", "jit")):
            jax.jit(hvd.broadcast_parameters)({"a": x})
        with pytest.raises(ValueError, match=mentioning("traced")):
            jax.jit(lambda x: hvd.poll(hvd.allreduce_async(x)))(x)
        assert hvd.synchronize(4711) is None
        assert hvd.allreduce(x, op=hvd.Sum).tolist() == (x * 2).tolist()

    job(2, check)


def test_a_program_made_for_other_ranks_is_an_error() -> None:
    def first(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        jax.made_earlier = (
            jax.jit(lambda x: hvd.allgather(x)),
            jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum)),
        )
        assert jax.made_earlier[0](jnp.ones(1)).tolist() == [1.0, 1.0]
        assert jax.made_earlier[1](jnp.ones(1)).tolist() == [2.0]

    def second(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        if hasattr(jax, "made_earlier"):  # nothing but the processes' own memory tells
            gather, reduce = jax.made_earlier
            with (
                pytest.raises(ValueError, match=mentioning("rank 0 of 1")),
                hvd.plain_errors(),
            ):
                jax.block_until_ready(gather(jnp.ones(1)))
            assert reduce(jnp.ones(1)).tolist() == [1.0]
            jax.clear_caches()
            assert gather(jnp.ones(1)).tolist() == [1.0]

    job(2, first)
    job(1, second)
