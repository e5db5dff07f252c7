from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core.collectives import direct, doubling, over, ring, tree
from farandole.core.collectives.flat import Flat, Scratch
from farandole.core.collectives.over import SMALL, cheapest
from farandole.core.transports.inproc import World
from tests.kits.oracle import assert_reduced, values
from tests.pool import ranks


def test_a_transport_passes_through() -> None:
    transport = over(World(1).link(0))
    assert over(transport) is transport


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.data())
def test_flat_is_like_one_array(lengths: list[int], data: st.DataObject) -> None:
    arrays = [np.arange(length) + 1000 * index for index, length in enumerate(lengths)]
    whole, flat = np.concatenate(arrays), Flat(arrays)
    assert flat.size == len(whole)
    lo = data.draw(st.integers(0, len(whole)))
    hi = data.draw(st.integers(lo, len(whole)))
    assert np.array_equal(flat.read(lo, hi), whole[lo:hi])
    view = flat.view(lo, hi)
    if view is not None:
        assert np.array_equal(view, whole[lo:hi])
        assert lo == hi or any(np.shares_memory(view, array) for array in arrays)
    flat.write(lo, np.full(hi - lo, -1))
    whole[lo:hi] = -1
    assert np.array_equal(np.concatenate(arrays), whole)


def test_scratch_is_the_same_memory_again() -> None:
    scratch = Scratch()
    first = scratch.take("a", 100, np.dtype(np.float32))
    assert np.shares_memory(first, scratch.take("a", 50, np.dtype(np.int64)))
    assert not np.shares_memory(first, scratch.take("b", 100, np.dtype(np.float32)))
    assert len(scratch.take("a", 1000, np.dtype(np.float64))) == 1000


@settings(deadline=None)
@given(st.integers(0, 200_000), st.integers(2, 6), st.integers(50, 70_000), st.integers(2, 5))
def test_even_groups_cover_everything_once(total: int, size: int, chunk: int, chunks: int) -> None:
    at = 0
    for group in ring.even_groups(total, size, chunk, chunks):
        for segment in range(size):
            for which in range(chunks):
                lo, hi = group[which][segment]
                assert lo == at
                assert 0 <= hi - lo <= max(chunk, 1)
                at = hi
    assert at == total


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5000), min_size=2, max_size=6).filter(any),
    st.integers(5, 2000),
    st.integers(2, 5),
)
def test_ragged_groups_cover_every_segment(counts: list[int], chunk: int, chunks: int) -> None:
    ends = [sum(counts[:rank]) for rank in range(len(counts))]
    for group in ring.ragged_groups(counts, chunk, chunks):
        for which in range(chunks):
            for segment, (lo, hi) in enumerate(group[which]):
                assert lo == ends[segment]
                assert 0 <= hi - lo <= chunk
                ends[segment] = hi
    assert ends == [sum(counts[: rank + 1]) for rank in range(len(counts))]


@pytest.mark.parametrize("ahead", [0, 64, 4 * 64])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_many_small_chunks(monkeypatch: pytest.MonkeyPatch, size: int, ahead: int) -> None:
    """Rings and chains of hundreds of messages, whose order must hold."""
    monkeypatch.setattr(ring, "CHUNK", 64)
    monkeypatch.setattr(ring, "WHOLE", 4)
    monkeypatch.setattr(tree, "CHUNK", 100)
    length = 7_011

    def body(transport: Any) -> tuple[Any, Any, Any]:
        reduced = []
        for dtype, scale in ((DType.FLOAT32, 1.0), (DType.FLOAT16, 0.5), (DType.INT32, 0.2)):
            array = values(dtype, length, transport.rank)
            flat = Flat([array[:777], array[777:778], array[778:]])
            ring.allreduce(transport.link, flat, flat, Scratch(), dtype, ReduceOp.SUM, scale)
            reduced.append(array)
        data = values(DType.UINT8, length, transport.rank)
        tree.pipelined_broadcast(transport.link, data, size - 1)
        counts = [(rank % 2) * length for rank in range(size)]
        whole = values(DType.FLOAT64, sum(counts), transport.rank)
        mine = np.zeros(counts[transport.rank])
        ring.reducescatter(
            transport.link,
            Flat([whole]),
            Flat([mine]),
            counts,
            Scratch(),
            DType.FLOAT64,
            ReduceOp.SUM,
            1.0,
        )
        return reduced, data, mine

    results = ranks(size, body, ahead=ahead)
    for rank, (reduced, data, mine) in enumerate(results):
        for array, dtype, scale in zip(
            reduced, (DType.FLOAT32, DType.FLOAT16, DType.INT32), (1.0, 0.5, 0.2), strict=True
        ):
            parts = [values(dtype, length, each) for each in range(size)]
            assert_reduced(array, parts, dtype, ReduceOp.SUM, scale)
        assert np.array_equal(data, values(DType.UINT8, length, size - 1))
        start = sum((each % 2) * length for each in range(rank))
        parts = [
            values(DType.FLOAT64, length * (size // 2), each)[start : start + len(mine)]
            for each in range(size)
        ]
        assert_reduced(mine, parts, DType.FLOAT64, ReduceOp.SUM)


@pytest.mark.parametrize("ahead", [0, 1 << 20])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8])
def test_recursive_doubling(size: int, ahead: int) -> None:
    """Several arrays, in place and not; integers are divided once, halves are rounded once."""
    length, kinds = (
        1001,
        ((DType.FLOAT32, 0.25), (DType.BFLOAT16, 1.0), (DType.INT32, 0.2), (DType.BOOL, 1.0)),
    )

    def body(transport: Any) -> list[Any]:
        reduced = []
        for dtype, scale in kinds:
            array = values(dtype, length, transport.rank)
            into = np.zeros_like(array) if dtype is DType.FLOAT32 else array
            parts = [array[:77], array[77:78], array[78:]] if dtype is DType.INT32 else [array]
            out = parts if into is array else [into]
            args = (Flat(parts), Flat(out), Scratch(), dtype, ReduceOp.SUM, scale)
            doubling.allreduce(transport.link, *args)
            reduced.append(into)
        return reduced

    results = ranks(size, body, ahead=ahead)
    for rank, reduced in enumerate(results):
        for place, (dtype, scale) in enumerate(kinds):
            parts = [values(dtype, length, each) for each in range(size)]
            assert_reduced(reduced[place], parts, dtype, ReduceOp.SUM, scale, f"rank {rank}")
            assert reduced[place].tobytes() == results[0][place].tobytes()


@pytest.mark.parametrize(
    ("size", "limits"),
    [
        (2, [(direct, SMALL), (ring, 1 << 40)]),
        (4, [(direct, 12 << 10), (doubling, 96 << 10), (ring, 1 << 40)]),
        (5, [(direct, 35 << 10), (ring, 1 << 40)]),
        (1024, [(doubling, SMALL), (ring, 1 << 40)]),
    ],
)
def test_the_algorithm_follows_from_size_and_ranks(
    size: int, limits: list[tuple[Any, int]]
) -> None:
    low = 4
    for algorithm, high in limits:
        assert cheapest(low, size) is cheapest(high, size) is algorithm, (low, high)
        low = high + 1


def test_halves_round_once_in_a_ring() -> None:
    """Five ranks; a partial sum rounded to half on its way would lose every small part."""
    length = SMALL  # bytes of this many halves are too many for the direct exchange

    def body(transport: Any) -> Any:
        array = np.full(length, 1.0 if transport.rank == 0 else 2.0**-12, np.float16)
        transport.allreduce([Buffer(array, array, DType.FLOAT16)], ReduceOp.SUM)
        return array

    for array in ranks(5, body):
        assert (array == 1.0 + 2.0**-10).all()


@pytest.mark.parametrize("length", [3, SMALL])
def test_a_part_that_is_reduced_in_its_place(length: int) -> None:
    def body(transport: Any) -> Any:
        data = values(DType.FLOAT32, 4 * length, transport.rank)
        mine = data[transport.rank * length :][:length]
        transport.reducescatter(Buffer(data, mine, DType.FLOAT32), [length] * 4, ReduceOp.SUM)
        return mine

    wholes = [values(DType.FLOAT32, 4 * length, rank) for rank in range(4)]
    for rank, mine in enumerate(ranks(4, body)):
        assert_reduced(
            mine, [whole[rank * length :][:length] for whole in wholes], DType.FLOAT32, ReduceOp.SUM
        )
