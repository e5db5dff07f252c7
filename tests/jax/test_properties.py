"""Every operation, type and shape class on one to three ranks against numpy, outside of programs
and inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

pytest.importorskip("jax", reason="jax is not installed")

DTYPES = ["uint8", "int8", "int16", "int32", "float16", "bfloat16", "float32", "bool"]
WIDE = ["int64", "float64"]  # with jax_enable_x64
MOVED = ["uint16", "uint32", "complex64"]
CLASSES: dict[str, tuple[int, ...]] = {
    "scalar": (),
    "empty": (0, 3),
    "one": (1,),
    "odd": (7, 3),
    "large": (16, 701),
}
OPS = ["Average", "Sum", "Min", "Max", "Product"]
UFUNCS: dict[str, Any] = {
    "Sum": np.add,
    "Min": np.minimum,
    "Max": np.maximum,
    "Product": np.multiply,
}
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-12}


def values(dtype: str, n: int) -> Iterator[list[Any]]:
    """Return, for each shape class, every rank's small integers: their sums and products are exact
    in every type.
    """
    for seed, shape in enumerate(CLASSES.values()):
        yield [
            np.random.default_rng([seed, rank]).integers(0, 2 if dtype == "bool" else 3, shape)
            for rank in range(n)
        ]


def reduced(op: str, dtype: str, every: list[Any]) -> Any:
    if op == "Average":
        total = sum(every) / len(every)
        return total if "float" in dtype else np.trunc(total)
    total = every[0]
    for value in every[1:]:
        total = UFUNCS[op](total, value)
    return (total != 0).astype(int) if dtype == "bool" else total


def assert_same(found: Any, wanted: Any, dtype: str) -> None:
    import jax

    assert isinstance(found, jax.Array)
    assert (str(found.dtype), found.shape) == (dtype, np.shape(wanted))
    kind = complex if dtype == "complex64" else float
    tolerance = TOLERANCE.get(dtype, 0)
    np.testing.assert_allclose(np.asarray(found).astype(kind), wanted, rtol=tolerance, atol=0)


def reductions(rank: int, n: int, dtype: str, run: Callable[[Callable[..., Any]], Any]) -> None:
    import jax.numpy as jnp

    import farandole.jax as hvd

    for every in values(dtype, n):
        mine = jnp.asarray(every[rank]).astype(dtype)
        ops = [op for op in OPS if dtype != "bool" or op != "Average"]

        def all_of_them(mine: Any, ops: list[str] = ops) -> Any:
            codes = [getattr(hvd, op) for op in ops]
            whole = [hvd.allreduce(mine, op=code) for code in codes]
            grouped = [hvd.grouped_allreduce([mine, mine], op=code)[1] for code in codes]
            parts = (
                [hvd.reducescatter(mine, op=code) for code in codes[:2]]
                if mine.ndim and dtype != "bool"
                else []
            )
            more = (
                [hvd.grouped_reducescatter([mine], op=code)[0] for code in codes[:2]]
                if parts
                else []
            )
            return whole, grouped, parts, more

        whole, grouped, parts, more = run(all_of_them)(mine)
        for number, op in enumerate(ops):
            wanted = reduced(op, dtype, every)
            assert_same(whole[number], wanted, dtype)
            assert_same(grouped[number], wanted, dtype)
        for number, found in enumerate(parts + more):
            assert_same(
                found, np.array_split(reduced(ops[number % 2], dtype, every), n)[rank], dtype
            )


def moves(rank: int, n: int, dtype: str, run: Callable[[Callable[..., Any]], Any]) -> None:
    import jax.numpy as jnp

    import farandole.jax as hvd

    for every in values(dtype, n):
        mine = jnp.asarray(every[rank]).astype(dtype)
        even = mine.ndim and len(mine) % n == 0

        def all_of_them(x: Any, even: bool = even) -> list[Any]:
            sent = [hvd.broadcast(x, n - 1)]
            if not x.ndim:
                return sent
            return [
                *sent,
                hvd.allgather(x),
                hvd.grouped_allgather([x, x])[1],
                *([hvd.alltoall(x)] if even else []),
            ]

        sent, *found = run(all_of_them)(mine)
        assert_same(sent, every[-1], dtype)
        if not mine.ndim:
            continue
        assert_same(found[0], np.concatenate(every), dtype)
        assert_same(found[1], np.concatenate(every), dtype)
        counts = [len(part) for part in np.array_split(mine, n)]
        dealt = np.concatenate([np.array_split(value, n)[rank] for value in every])
        out, received = hvd.alltoall(mine, counts)
        assert received.tolist() == [counts[rank]] * n
        assert_same(out, dealt, dtype)
        ragged = [value[: len(value) * each // n] for each, value in enumerate(every)]
        assert_same(
            hvd.allgather(jnp.asarray(ragged[rank]).astype(dtype)), np.concatenate(ragged), dtype
        )
        if even:
            assert_same(found[2], dealt, dtype)


@pytest.mark.parametrize(
    ("way", "n", "wire"), [("eager", 3, "shm"), ("jit", 1, "shm"), ("jit", 2, "tcp")]
)
def test_against_numpy(way: str, n: int, wire: str) -> None:
    def check(rank: int) -> None:
        import jax

        # a new function for each call: nothing is cached
        def run(function: Callable[..., Any]) -> Callable[..., Any]:
            return jax.jit(lambda *args: function(*args)) if way == "jit" else function

        # all of them take their time
        dtypes = DTYPES if n == 2 else ["int32", "bfloat16", "float32", "bool"]
        for dtype in dtypes:
            reductions(rank, n, dtype, run)
        for dtype in dtypes + MOVED:
            moves(rank, n, dtype, run)
        jax.config.update("jax_enable_x64", True)
        try:
            for dtype in WIDE:
                reductions(rank, n, dtype, run)
                moves(rank, n, dtype, run)
        finally:
            jax.config.update("jax_enable_x64", False)

    job(n, check, wire=wire)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_random_numbers_and_factors(dtype: str) -> None:
    n = 3

    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        for seed, op in enumerate(OPS):
            generator = np.random.default_rng(seed)
            every = [
                jnp.asarray(generator.standard_normal((5, seed + 1))).astype(dtype)
                for _ in range(n)
            ]
            pre, post = [(1.0, 1.0), (0.5, 3.0), (-2.0, 0.25)][seed % 3]

            def reduce(x: Any, op: str = op, pre: float = pre, post: float = post) -> Any:
                return hvd.allreduce(
                    x, op=getattr(hvd, op), prescale_factor=pre, postscale_factor=post
                )

            wanted = (
                reduced(op, dtype, [np.asarray(each).astype(float) * pre for each in every]) * post
            )
            tolerance = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5}[dtype]
            for found in (reduce(every[rank]), jax.jit(reduce)(every[rank])):
                np.testing.assert_allclose(
                    np.asarray(found).astype(float), wanted, rtol=tolerance, atol=tolerance
                )

    job(n, check)


def test_factors_may_be_numbers_of_jax_but_not_of_a_program() -> None:
    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        def reduce(x: Any, factor: Any) -> Any:
            return hvd.allreduce(x, op=hvd.Sum, prescale_factor=factor)

        for two in (jnp.float32(2), np.float32(2), np.int64(2)):
            assert reduce(jnp.ones(1), two).tolist() == [4.0]
            assert jax.jit(lambda x, two=two: reduce(x, two))(jnp.ones(1)).tolist() == [4.0]
        with pytest.raises(TypeError, match=mentioning("number")):
            jax.jit(reduce)(jnp.ones(1), 2.0)

    job(2, check)


def test_scalars_trees_and_compression() -> None:
    def check(rank: int) -> None:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        assert hvd.allreduce(float(rank)) == 0.5
        assert hvd.allreduce(np.arange(2) + rank, op=hvd.Sum).tolist() == [1, 3]
        found = hvd.allreduce(
            {"loss": 1.0 + rank, "hits": [jnp.ones(2) * rank, np.float32(rank)]}, name="metrics"
        )
        assert (float(found["loss"]), found["hits"][0].tolist(), float(found["hits"][1])) == (
            1.5,
            [0.5, 0.5],
            0.5,
        )
        assert hvd.grouped_allreduce([]) == []
        assert jax.jit(lambda tree: hvd.allreduce(tree))({}) == {}
        x = jnp.asarray([1.0 + 2**-12, 3.0])
        for kind in (hvd.Compression.fp16, hvd.Compression.bf16):
            small = jax.jit(lambda x, kind=kind: hvd.allreduce(x, compression=kind))(x)
            assert (str(small.dtype), small.tolist()) == ("float32", [1.0, 3.0])
        whole = hvd.allreduce(jnp.arange(2) + rank, op=hvd.Max, compression=hvd.Compression.fp16)
        assert (str(whole.dtype), whole.tolist()) == ("int32", [1, 2])

    job(2, check)
