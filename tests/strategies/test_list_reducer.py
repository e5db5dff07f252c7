"""A list of arrays, reduced together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.base.types import DType, ReduceOp
from farandole.core.api.compression import CastCompressor
from farandole.strategies.buffer_pool import ALIGNMENT
from farandole.strategies.list_reducer import GradientListReducer
from farandole.strategies.options import GradientOptions
from tests.kits.messages import mentioning
from tests.run_job import job

SUM = GradientOptions(ReduceOp.SUM)
SHAPES: list[tuple[int, ...]] = [(3, 4), (), (0,), (1,), (40_000,), (7, 110, 53)]
TYPES = ["float32", "float64", "int32", "float16"]


def arrays(rank: int, step: int = 0) -> list[Any]:
    random = np.random.default_rng(100 * step + rank)
    return [
        np.array(random.standard_normal(shape) * 8, dtype=TYPES[number % len(TYPES)])
        for number, shape in enumerate(SHAPES * 2)
    ]


def total(n: int, step: int = 0) -> list[Any]:
    return [
        sum(each.astype("float64") for each in column).astype(column[0].dtype)
        for column in zip(*[arrays(rank, step) for rank in range(n)], strict=True)
    ]


def close(one: Any, two: Any) -> bool:
    tolerance = 2e-2 if one.dtype == np.float16 else 1e-5
    return (
        one.shape == two.shape
        and one.dtype == two.dtype
        and np.allclose(one, two, rtol=tolerance, atol=tolerance)
    )


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("wire", ["shm", "tcp"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_sums_of_all_types_and_shapes_step_after_step(n: int, wire: str, in_place: bool) -> None:
    def fn(rank: int) -> list[list[Any]]:
        reducer = GradientListReducer("test", SUM)
        return [
            [each.copy() for each in reducer(arrays(rank, step), in_place=in_place)]
            for step in range(4)
        ]

    for results in job(n, fn, wire=wire):
        for step, lists in enumerate(results):
            assert all(close(one, two) for one, two in zip(lists, total(n, step), strict=True))


def test_in_place_the_arrays_themselves_are_reduced() -> None:
    def fn(rank: int) -> bool:
        reducer = GradientListReducer("test", GradientOptions(prescale=2.0))
        mine = [
            np.full(shape, rank + 1.0, dtype)
            for shape in (3, 70_000)
            for dtype in ("float32", "float16", "int32")
        ]
        mine.append(mine[-1][:])  # one that is there twice
        # and other layouts
        mine += [np.full((300, 200), rank + 1.0).T, np.full((300, 200), rank + 1.0)[:, ::2]]
        given = reducer(mine, in_place=True)
        return all(one is two and (one == 3).all() for one, two in zip(mine, given, strict=True))

    assert job(2, fn) == [True, True]


def test_results_are_in_transport_memory_unless_it_is_held() -> None:
    def fn(rank: int) -> list[bool]:
        reducer = GradientListReducer("test")
        mine = [np.full((4, 5), float(rank)), np.asfortranarray(np.full((6, 7), float(rank)))[::2]]
        reducer(mine)

        def places(results: list[Any]) -> list[int]:
            return [each.ctypes.data for each in results]

        kept = reducer(mine)
        begins = places(kept)
        mine[0] += 2  # in the next step
        other = reducer(mine)
        apart = not {*begins} & {*places(other)} and places(reducer(mine)) != begins
        unchanged = (
            all((each == 0.5).all() for each in kept)
            and (other[0] == 2.5).all()
            and (mine[0] == rank + 2).all()
        )
        unchanged = unchanged and (mine[1] == rank).all()
        row = kept[1][1]
        del kept
        still = places(reducer(mine)) != begins  # a view of a view is enough
        aligned = all(begin % ALIGNMENT == 0 for begin in [*begins, *places(other)])
        del row
        # two pieces of memory, since one has not sufficed
        turns = [places(reducer(mine)) for _ in range(6)]
        again = begins in turns and turns[:2] == turns[2:4] == turns[4:] and turns[0] != turns[1]
        return [apart, bool(unchanged), still, aligned, again]

    assert job(2, fn) == [[True] * 5] * 2


def test_one_rank_holds_its_results_and_the_other_does_not() -> None:
    def fn(rank: int) -> list[float]:
        reducer, kept, sums = GradientListReducer("test", SUM), [], []
        for step in range(6):
            results = reducer([np.full(50_000, rank + step), np.ones(3, "int8")])
            sums.append(float(results[0][-1]))
            if rank == 1:
                kept.append(results)
        assert all((each[0] == 1 + 2 * step).all() for step, each in enumerate(kept))
        return sums

    assert job(2, fn) == [[1.0, 3.0, 5.0, 7.0, 9.0, 11.0]] * 2


def test_scales_and_average() -> None:
    def fn(rank: int) -> list[float]:
        each = GradientListReducer("test", GradientOptions(prescale=0.5, postscale=8.0))
        return [float(each([np.array([rank + 1.0])])[0][0]) for _ in range(3)]

    assert job(2, fn) == [[6.0] * 3] * 2


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("wire", [DType.FLOAT16, DType.BFLOAT16])
def test_floats_travel_as_a_smaller_type(wire: DType, in_place: bool) -> None:
    def fn(rank: int) -> list[Any]:
        class Cast(CastCompressor):
            dtype = wire

        reducer = GradientListReducer("test", SUM._replace(compression=Cast))
        mine = [
            np.array([1.5, -2.0 * rank, 70000.0]),
            np.arange(3, dtype="int64"),
            np.ones(2, "float16"),
        ]
        large = [np.full(70_000, rank + 1.0), np.full(70_000, rank + 1.0, "float16")]
        results = reducer([*mine, *large], in_place=in_place)
        assert [(each.min(), each.max()) for each in results[3:]] == [(3.0, 3.0)] * 2
        return [each.copy() for each in results[:3]]

    for double, integer, half in job(2, fn):
        top = np.inf if wire is DType.FLOAT16 else 140000.0
        assert double.dtype == np.float64
        assert np.allclose(double, [3.0, -2.0, top], rtol=1e-2)
        assert integer.tolist() == [0, 2, 4]
        assert half.dtype == np.float16
        assert half.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(("in_place", "times"), [(False, 1), (True, 1), (True, 10_000)])
def test_a_difference_is_named_and_the_exchange_continues(in_place: bool, times: int) -> None:
    def fn(rank: int) -> list[str]:
        reducer, said = GradientListReducer("gradients"), []

        def ones(count: int, dtype: str = "float32") -> Any:
            return np.ones(count * times, dtype)

        good = [ones(3), ones(4)]
        bad = {
            "count": good[:1],
            "shape": [ones(4), ones(3)],
            "size": [ones(3), ones(5)],
            "type": [ones(3), ones(4, "float64")],
        }
        for round_ in range(2):
            for each in bad.values():
                try:
                    names = ["w", "b"][: len(each)] if rank == 1 else ["w", "b"]
                    reducer(each if rank == 1 else good, names, in_place=in_place)
                except ValueError as error:
                    said.append(str(error))
            said.append(
                str(reducer([ones(3), ones(4)], ["w", "b"], in_place=in_place)[0][:3].tolist())
            )
            del round_
        return said

    one, two = job(2, fn)
    assert one == two
    assert len(one) == 10
    assert "rank 0 has 2, rank 1 has 1; only rank 0 has 'b'" in one[0]
    three, four, five = 3 * times, 4 * times, 5 * times
    assert f"'w' has shape ({three},) on rank 0 and ({four},) on rank 1" in one[1]
    assert f"'b' has shape ({four},) on rank 0 and ({five},) on rank 1" in one[2]
    assert "'b' has type float32 on rank 0 and float64 on rank 1" in one[3]
    assert one[4] == "[1.0, 1.0, 1.0]"
    assert one[:5] == one[5:]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_rank_that_has_joined_counts_as_zeros_and_comes_back(in_place: bool) -> None:
    def fn(rank: int) -> list[float]:
        import farandole.numpy as hvd

        reducer, got = GradientListReducer("test", SUM), []
        for _ in range(2):
            for _ in range(1 + 2 * rank):
                got.append(float(reducer([np.full(100_000, 1.0)], in_place=in_place)[0][-1]))
            hvd.join()
        return got

    assert job(2, fn) == [[2.0, 2.0], [2.0, 1.0, 1.0] * 2]


def test_a_type_that_cannot_be_reduced() -> None:
    def fn(rank: int) -> str:
        with pytest.raises(ValueError, match=mentioning("'z'", "complex64")):
            GradientListReducer("test")([np.ones(2, "complex64")], ["z"])
        return "ok"

    assert job(1, fn) == ["ok"]


def test_two_exchanges_in_flight_in_different_orders() -> None:
    def fn(rank: int) -> list[float]:
        first, second = GradientListReducer("first", SUM), GradientListReducer("second", SUM)
        got = []
        for _ in range(3):
            order = [first, second] if rank == 0 else [second, first]
            finish = {each.name: each.start([np.full(10, len(each.name) + rank)]) for each in order}
            got += [float(finish[name]()[0][0]) for name in ("second", "first")]
        return got

    assert job(2, fn) == [[13.0, 11.0] * 3] * 2


@pytest.mark.parametrize("in_place", [False, True])
def test_with_a_codec_each_array_has_its_residual(
    in_place: bool,
) -> None:
    def fn(rank: int) -> tuple[list[list[Any]], dict[str, Any]]:
        reducer = GradientListReducer("test", SUM._replace(codec="topk:0.02"))
        results = [
            [each.copy() for each in reducer(arrays(rank, step), in_place=in_place)]
            for step in range(3)
        ]
        assert reducer.codec is not None
        return results, reducer.codec.state_dict()

    (first, one), (second, two) = job(2, fn)
    assert all(
        a.tobytes() == b.tobytes()
        for x, y in zip(first, second, strict=True)
        for a, b in zip(x, y, strict=True)
    )
    for number, shape in enumerate(SHAPES * 2):
        given = sum(total(2, step)[number].astype("float64") for step in range(3))
        came = sum(results[number].astype("float64") for results in first)
        key = f"residual/number {number}"
        assert (key in one) == (TYPES[number % 4] != "int32")
        kept = np.reshape(one[key] + two[key], shape) if key in one else 0
        assert np.allclose(came + kept, given, rtol=1e-4, atol=0.1 if number % 4 == 3 else 1e-4)


def test_a_residual_belongs_to_a_name() -> None:
    """Lists of frozen layers are shorter; their names may be reused."""

    def fn(rank: int) -> None:
        reducer = GradientListReducer("test", SUM._replace(codec="threshold:100"))
        one, other, third = (np.full(10, size) for size in (1.0, 2.0, 3.0))
        reducer([one, other, third], ["a", "b", "b"])
        reducer([other, third], ["b", "b"])
        assert reducer.codec is not None
        kept = {name: array.sum() for name, array in reducer.codec.state_dict().items()}
        assert kept == {"residual/a": 10.0, "residual/b": 40.0, "residual/b (2)": 60.0}

    job(2, fn)
