"""A list of arrays, reduced at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.frontend.exchange import ALIGNMENT, Exchange
from farandole.types import DType, ReduceOp
from tests.job import job

SHAPES: list[tuple[int, ...]] = [(3, 4), (), (0,), (1,), (5000,), (7, 11, 13)]
TYPES = ["float32", "float64", "int32", "float16"]


def arrays(rank: int, step: int = 0) -> list[Any]:
    random = np.random.default_rng(100 * step + rank)
    return [
        (random.standard_normal(shape) * 8).astype(TYPES[number % len(TYPES)])
        for number, shape in enumerate(SHAPES * 2)
    ]


def total(n: int, step: int = 0) -> list[Any]:
    return [
        sum(each.astype("float64") for each in column).astype(column[0].dtype)
        for column in zip(*[arrays(rank, step) for rank in range(n)], strict=True)
    ]


def close(one: Any, two: Any) -> bool:
    tolerance = 2e-2 if one.dtype == np.float16 else 1e-5
    return one.shape == two.shape and one.dtype == two.dtype and np.allclose(one, two, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("wire", ["shm", "tcp"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_sums_of_all_types_and_shapes_step_after_step(n: int, wire: str) -> None:
    def fn(rank: int) -> list[list[Any]]:
        exchange = Exchange("test", ReduceOp.SUM)
        return [[each.copy() for each in exchange(arrays(rank, step))] for step in range(4)]

    for results in job(n, fn, wire=wire):
        for step, lists in enumerate(results):
            assert all(close(one, two) for one, two in zip(lists, total(n, step), strict=True))


def test_results_stand_in_memory_of_the_transport_and_inputs_are_left_alone() -> None:
    def fn(rank: int) -> tuple[bool, bool]:
        exchange = Exchange("test")
        mine = [np.full((4, 5), float(rank)), np.asfortranarray(np.full((6, 7), float(rank)))[::2]]
        exchange(mine)
        two = exchange(mine)
        three = exchange(mine)
        same = all(one.ctypes.data == other.ctypes.data for one, other in zip(two, three, strict=True))
        return same, all((each == rank).all() for each in mine) and all((each == 0.5).all() for each in three)

    assert job(2, fn) == [(True, True)] * 2


def test_scales_and_average() -> None:
    def fn(rank: int) -> list[float]:
        each = Exchange("test", ReduceOp.AVERAGE, prescale=0.5, postscale=8.0)
        return [float(each([np.array([rank + 1.0])])[0][0]) for _ in range(3)]

    assert job(2, fn) == [[6.0] * 3] * 2


@pytest.mark.parametrize("wire", [DType.FLOAT16, DType.BFLOAT16])
def test_floats_travel_as_a_smaller_type(wire: DType) -> None:
    def fn(rank: int) -> list[Any]:
        exchange = Exchange("test", ReduceOp.SUM, wire=wire)
        mine = [np.array([1.5, -2.0 * rank, 70000.0]), np.arange(3, dtype="int64"), np.ones(2, "float16")]
        return exchange(mine)

    for double, integer, half in job(2, fn):
        top = np.inf if wire is DType.FLOAT16 else 140000.0
        assert double.dtype == np.float64
        assert np.allclose(double, [3.0, -2.0, top], rtol=1e-2)
        assert integer.tolist() == [0, 2, 4]
        assert half.dtype == np.float16
        assert half.tolist() == [2.0, 2.0]


def test_what_differs_between_ranks_is_named_on_all_and_the_exchange_goes_on() -> None:
    def fn(rank: int) -> list[str]:
        exchange, said = Exchange("gradients"), []
        good = [np.ones(3, "float32"), np.ones(4, "float32")]
        bad = {
            "count": good[:1],
            "shape": [np.ones(4, "float32"), np.ones(3, "float32")],
            "size": [np.ones(3, "float32"), np.ones(5, "float32")],
            "type": [np.ones(3, "float32"), np.ones(4, "float64")],
        }
        for round_ in range(2):
            for each in bad.values():
                try:
                    exchange(each if rank == 1 else good, ["w", "b"][: len(each)] if rank == 1 else ["w", "b"])
                except ValueError as error:
                    said.append(str(error))
            said.append(str(exchange(good, ["w", "b"])[0].tolist()))
            del round_
        return said

    one, two = job(2, fn)
    assert one == two
    assert len(one) == 10
    assert "rank 0 has 2 of them, rank 1 has 1" in one[0]
    assert "rank 0 has ('w', (3,), 'float32'), rank 1 has ('w', (4,), 'float32')" in one[1]
    assert "('b', (5,), 'float32')" in one[2]
    assert "('b', (4,), 'float64')" in one[3]
    assert one[4] == "[1.0, 1.0, 1.0]"
    assert one[:5] == one[5:]


def test_a_rank_that_has_joined_counts_as_zeros_and_comes_back() -> None:
    def fn(rank: int) -> list[float]:
        import farandole.numpy as hvd

        exchange, got = Exchange("test", ReduceOp.SUM), []
        for _ in range(2):
            for _ in range(1 + 2 * rank):
                got.append(float(exchange([np.full(100_000, 1.0)])[0][-1]))
            hvd.join()
        return got

    assert job(2, fn) == [[2.0, 2.0], [2.0, 1.0, 1.0] * 2]


def test_a_type_that_cannot_be_reduced() -> None:
    def fn(rank: int) -> str:
        with pytest.raises(ValueError, match="'z' has type complex64"):
            Exchange("test")([np.ones(2, "complex64")], ["z"])
        return "ok"

    assert job(1, fn) == ["ok"]


def test_two_exchanges_in_flight_in_different_orders() -> None:
    def fn(rank: int) -> list[float]:
        first, second = Exchange("first", ReduceOp.SUM), Exchange("second", ReduceOp.SUM)
        got = []
        for _ in range(3):
            order = [first, second] if rank == 0 else [second, first]
            finish = {each.name: each.start([np.full(10, len(each.name) + rank)]) for each in order}
            got += [float(finish[name]()[0][0]) for name in ("second", "first")]
        return got

    assert job(2, fn) == [[13.0, 11.0] * 3] * 2


@pytest.mark.parametrize("wire", ["shm", "tcp"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_new_arrays_that_nobody_else_holds(n: int, wire: str) -> None:
    """Small ones and large ones, contiguous and not, of several types; while the results of two steps are kept."""

    def given(rank: int, step: int) -> list[Any]:
        wide = np.arange(400 * 300.0).reshape(400, 300)[:, ::2] * (rank + step)
        return [*arrays(rank, step), wide, wide.astype("float32").T, np.full(1 << 18, rank + step, np.int8)]

    def fn(rank: int) -> list[tuple[bool, bool, bool]]:
        exchange, kept, told = Exchange("test", ReduceOp.SUM), [], []
        for step in range(3):
            mine = given(rank, step)
            results = exchange.start(mine, new=True)()
            same = [each.copy() for each in results]
            kept.append((results, same))
            large = [each for each in results if each.nbytes >= 64 << 10]
            told.append((
                all(
                    close(one, sum(column[1:], start=column[0].astype("float64")).astype(one.dtype))
                    for one, *column in zip(results, *[given(each, step) for each in range(n)], strict=True)
                ),
                len(large) == 3 and all(each.ctypes.data % ALIGNMENT == 0 for each in large),
                all(np.array_equal(one, two) for one, two in zip(mine, given(rank, step), strict=True)),
            ))  # fmt: skip
        assert all(np.array_equal(one, two) for pair in kept for one, two in zip(*pair, strict=True))
        return told

    assert job(n, fn, wire=wire) == [[(True, True, True)] * 3] * n


def test_new_arrays_when_ranks_differ_or_have_joined() -> None:
    def fn(rank: int) -> tuple[str, list[float]]:
        import farandole.numpy as hvd

        exchange, said = Exchange("gradients", ReduceOp.SUM), ""
        good = [np.ones(100_000, "float32"), np.ones(3, "float32")]
        for bad in (good[:1], good[::-1], [good[0], np.ones(3, "float64")]):
            try:
                exchange.start(bad if rank == 1 else good, new=True)()
            except ValueError as error:
                said += f"{error}\n"
        sums = []
        for _ in range(1 + 2 * rank):
            sums.append(float(exchange.start(good, new=True)()[0][-1]))
        hvd.join()
        return said, sums

    (said, few), (same, many) = job(2, fn)
    assert said == same
    assert said.count("\n") == 3
    assert "rank 0 has 2 of them, rank 1 has 1" in said
    assert "(3,), 'float32'" in said
    assert "'float64'" in said
    assert (few, many) == ([2.0], [2.0, 1.0, 1.0])
