"""A list of arrays, reduced at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.frontend.exchange import Exchange
from farandole.frontend.lending import ALIGNMENT
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


def test_results_stand_in_memory_of_the_transport_unless_somebody_holds_some() -> None:
    def fn(rank: int) -> list[bool]:
        exchange = Exchange("test")
        mine = [np.full((4, 5), float(rank)), np.asfortranarray(np.full((6, 7), float(rank)))[::2]]
        exchange(mine)

        def places(results: list[Any]) -> list[int]:
            return [each.ctypes.data for each in results]

        kept = exchange(mine)
        begins = places(kept)
        mine[0] += 2  # in the next step
        other = exchange(mine)
        apart = not {*begins} & {*places(other)} and places(exchange(mine)) != begins
        unchanged = (
            all((each == 0.5).all() for each in kept) and (other[0] == 2.5).all() and (mine[0] == rank + 2).all()
        )
        unchanged = unchanged and (mine[1] == rank).all()
        row = kept[1][1]
        del kept
        still = places(exchange(mine)) != begins  # a view of a view is enough
        aligned = all(begin % ALIGNMENT == 0 for begin in [*begins, *places(other)])
        del row
        turns = [places(exchange(mine)) for _ in range(6)]  # two pieces of memory, since one has not sufficed
        again = begins in turns and turns[:2] == turns[2:4] == turns[4:] and turns[0] != turns[1]
        return [apart, bool(unchanged), still, aligned, again]

    assert job(2, fn) == [[True] * 5] * 2


def test_one_rank_holds_its_results_and_the_other_does_not() -> None:
    def fn(rank: int) -> list[float]:
        exchange, kept, sums = Exchange("test", ReduceOp.SUM), [], []
        for step in range(6):
            results = exchange([np.full(50_000, rank + step), np.ones(3, "int8")])
            sums.append(float(results[0][-1]))
            if rank == 1:
                kept.append(results)
        assert all((each[0] == 1 + 2 * step).all() for step, each in enumerate(kept))
        return sums

    assert job(2, fn) == [[1.0, 3.0, 5.0, 7.0, 9.0, 11.0]] * 2


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
