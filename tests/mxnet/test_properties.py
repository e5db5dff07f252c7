"""Every operation, type and shape class on one to three ranks, against numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.run_job import job

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")

DTYPES = ["uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool"]
SHAPES: dict[str, tuple[int, ...]] = {
    "one": (1,),
    "empty": (0, 3),
    "odd": (7, 3),
    "large": (60, 701),
    "deep": (2, 3, 1, 5),
}
KINDS = [*SHAPES, "slice", "reshaped", "computed", "numpy", "numpy scalar"]
OPS = ["Average", "Sum", "Min", "Max", "Product"]
UFUNCS: dict[str, Any] = {
    "Sum": np.add,
    "Min": np.minimum,
    "Max": np.maximum,
    "Product": np.multiply,
}


def values(kind: str, dtype: str, rank: int, seed: int) -> Any:
    """Return small integers of a shape class: their sums and products are exact in every type."""
    generator = np.random.default_rng([seed, rank])
    shape = SHAPES.get(kind, () if kind == "numpy scalar" else (6, 4))
    return np.asarray(generator.integers(0, 2 if dtype == "bool" else 3, shape)).astype(dtype)


def tensor(kind: str, value: Any) -> Any:
    if kind.startswith("numpy"):
        with mx.util.np_shape(True):
            return mx.np.array(value, dtype=value.dtype)
    if not value.size:
        return mx.nd.empty(value.shape, dtype=value.dtype)
    if kind == "slice":  # a view of some rows of a larger array
        return mx.nd.array(np.concatenate([value, value, value]), dtype=value.dtype)[
            len(value) : 2 * len(value)
        ]
    if kind == "reshaped":
        return mx.nd.array(value.reshape(-1), dtype=value.dtype).reshape(value.shape)
    if kind == "computed" and value.dtype != bool:  # not there yet when it is handed over
        return mx.nd.array(value, dtype=value.dtype) * 1
    return mx.nd.array(value, dtype=value.dtype)


def wide(value: Any) -> Any:
    return value.astype(np.float64 if value.dtype.kind == "f" else np.int64)


def reduced(op: str, dtype: str, every: list[Any]) -> Any:
    """Return the reduction of the ranks' values, computed by numpy."""
    every = [wide(value) for value in every]
    if op == "Average":
        total = sum(every) / len(every)
        return total if "float" in dtype else np.trunc(total)
    total = every[0]
    for value in every[1:]:
        total = UFUNCS[op](total, value)
    return (total != 0).astype(np.int64) if dtype == "bool" else total


def assert_same(found: Any, wanted: Any, like: Any) -> None:
    assert type(found) is type(like)
    array = found.asnumpy()
    assert array.dtype == like.dtype
    assert found.shape == np.shape(wanted)
    tolerance = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-12}.get(array.dtype.name, 0)
    np.testing.assert_allclose(wide(array), wanted, rtol=tolerance, atol=0)


def cases(dtype: str, rank: int, n: int) -> Iterator[tuple[Callable[[], Any], list[Any]]]:
    """Yield a function that makes this rank's array, and the values of all ranks."""
    for seed, kind in enumerate(KINDS):
        every = [values(kind, dtype, each, seed) for each in range(n)]
        yield partial(tensor, kind, every[rank]), every


@pytest.mark.parametrize(("n", "wire"), [(1, "shm"), (2, "shm"), (3, "shm"), (2, "tcp")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(dtype: str, n: int, wire: str) -> None:
    def check(rank: int) -> None:
        import farandole.mxnet as hvd

        for make, every in cases(dtype, rank, n):
            mine = make()
            for op in OPS:
                if dtype == "bool" and op == "Average":
                    continue
                wanted, code = reduced(op, dtype, every), getattr(hvd, op)
                found = hvd.allreduce(mine, op=code)
                kept = make()
                assert hvd.allreduce_(kept, op=code) is kept
                first, second = hvd.grouped_allreduce([mine, mine], op=code)
                pair = [make(), make()]
                third, fourth = hvd.grouped_allreduce_(pair, op=code)
                assert third is pair[0]
                for each in (found, kept, first, second, third, fourth):
                    assert_same(each, wanted, mine)
                assert_same(mine, wide(every[rank]), mine)  # left alone
                if op in ("Average", "Sum") and mine.ndim:
                    own = np.array_split(wanted, n)[rank]
                    assert_same(hvd.reducescatter(mine, op=code), own, mine)
                    assert_same(hvd.grouped_reducescatter([mine], op=code)[0], own, mine)

    job(n, check, wire=wire)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_moves(dtype: str, n: int) -> None:
    def check(rank: int) -> None:
        import farandole.mxnet as hvd

        for make, every in cases(dtype, rank, n):
            mine = make()
            for root in range(n):
                found, kept = hvd.broadcast(mine, root), make()
                assert hvd.broadcast_(kept, root) is kept
                assert_same(found, wide(every[root]), mine)
                assert_same(kept, wide(every[root]), mine)
            if not mine.ndim:
                continue
            whole = wide(np.concatenate(every))
            assert_same(hvd.allgather(mine), whole, mine)
            assert_same(hvd.grouped_allgather([mine, mine])[1], whole, mine)
            assert_same(hvd.gather(mine, n - 1), whole if rank == n - 1 else whole[:0], mine)
            counts = [len(part) for part in np.array_split(every[0], n)]
            out, received = hvd.alltoall(mine, mx.nd.array(counts, dtype="int32"))
            assert received.asnumpy().tolist() == [counts[rank]] * n
            assert received.dtype == np.int32
            dealt = wide(np.concatenate([np.array_split(value, n)[rank] for value in every]))
            assert_same(out, dealt, mine)
            assert_same(hvd.alltoall(mine, counts)[0], dealt, mine)
            if len(every[0]) % n == 0:
                assert_same(hvd.alltoall(mine), dealt, mine)

    job(n, check)


def test_uneven_rows() -> None:
    def check(rank: int) -> None:
        import farandole.mxnet as hvd

        mine = mx.nd.full((rank, 2), rank) if rank else mx.nd.empty((0, 2))
        assert hvd.allgather(mine).asnumpy().tolist() == [[1, 1], [2, 2], [2, 2]]
        part = hvd.reducescatter(mx.nd.arange(2), op=hvd.Sum)
        assert part.asnumpy().tolist() == [[0.0], [3.0], []][rank]
        out, received = hvd.alltoall(mx.nd.arange(2) + 10 * rank, [2, 0, 0])
        assert out.asnumpy().tolist() == ([0, 1, 10, 11, 20, 21] if rank == 0 else [])
        assert received.asnumpy().tolist() == ([2, 2, 2] if rank == 0 else [0, 0, 0])

    job(3, check)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_random_numbers_and_factors(dtype: str, op: str) -> None:
    n = 3

    def check(rank: int) -> None:
        import farandole.mxnet as hvd

        for seed in range(6):
            generator = np.random.default_rng(seed)
            shape = tuple(generator.integers(1, 40, 1 + seed % 3))
            every = [generator.standard_normal(shape).astype(dtype) for _ in range(n)]
            pre, post = [(1.0, 1.0), (0.5, 3.0), (-2.0, 0.25)][seed % 3]
            found = hvd.allreduce(
                mx.nd.array(every[rank], dtype=dtype),
                op=getattr(hvd, op),
                prescale_factor=pre,
                postscale_factor=post,
                name=f"{seed}",
                priority=seed,
            )
            wanted = reduced(op, dtype, [wide(each) * pre for each in every]) * post
            tolerance = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-12}[dtype]
            np.testing.assert_allclose(
                wide(found.asnumpy()), wanted, rtol=tolerance, atol=tolerance
            )

    job(n, check)


def test_bfloat16_is_exchanged_unchanged() -> None:
    """MXNet 1.9 stores this type, but computes little with it."""

    def check(rank: int) -> None:
        import farandole.mxnet as hvd
        from farandole.mxnet.binding import memory, overwrite

        kind = np.dtype([("bfloat16", np.uint16)])
        mine = mx.nd.empty((3,), dtype=kind)
        overwrite(
            mine,
            np.array([0x3F80, 0x4000, 0xC040], dtype=np.uint16) if rank else np.zeros(3, np.uint16),
        )
        total = hvd.allreduce(mine, op=hvd.Average)
        total.wait_to_read()
        assert memory(total).tolist() == [0x3F00, 0x3F80, 0xBFC0]  # 0.5, 1, -1.5
        assert memory(hvd.allgather(mine)).tolist() == [0, 0, 0, 0x3F80, 0x4000, 0xC040]

    job(2, check)
