"""Two levels of wires pass the same kit as one level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core.collectives import hierarchical
from farandole.core.collectives.hierarchical import SMALL, Hierarchical
from farandole.errors import PeerLostError
from tests.kits.oracle import assert_reduced, values
from tests.kits.transport import TransportKit
from tests.kits.worlds import two_levels
from tests.pool import threads


class TestHierarchical(TransportKit):
    has_parts = True

    def joiner(self, size: int) -> Callable[[int], Any]:
        return two_levels(size)


@pytest.mark.parametrize("size", [3, 4, 5, 6])
@pytest.mark.parametrize(
    "dtype", [DType.FLOAT32, DType.BFLOAT16, DType.INT8, DType.INT64, DType.BOOL]
)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MAX])
def test_large_tensors_are_sent_in_slices(size: int, dtype: DType, op: ReduceOp) -> None:
    lengths = [SMALL // dtype.itemsize + 1, 7]
    scale = 1 / size if op is ReduceOp.SUM else 1.0  # of bool: true where all are

    def body(wire: Hierarchical) -> list[np.ndarray]:
        def no(*args: Any) -> None:
            raise AssertionError("a large tensor went over the flat wire")

        wire.flat.allreduce = no  # type: ignore[method-assign]
        arrays = [values(dtype, length, wire.rank) for length in lengths]
        wire.allreduce([Buffer(array, array, dtype) for array in arrays], op, scale)
        return arrays

    results = threads(size, two_levels(size), body)
    for place, length in enumerate(lengths):
        parts = [values(dtype, length, rank) for rank in range(size)]
        for rank in range(size):
            assert_reduced(results[rank][place], parts, dtype, op, scale, f"rank {rank}")
            assert results[rank][place].tobytes() == results[0][place].tobytes()


@pytest.mark.parametrize("size", [3, 4, 5])
def test_very_large_tensors_are_sent_in_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with separate memory for the result, and a shorter last piece."""
    monkeypatch.setattr(hierarchical, "PIECE", 40_000)
    length = 50_003

    def body(wire: Hierarchical) -> np.ndarray:
        data, out = values(DType.FLOAT32, length, wire.rank), np.zeros(length, np.float32)
        for _ in range(3):
            wire.allreduce([Buffer(data, out, DType.FLOAT32)], ReduceOp.SUM)
        assert np.array_equal(data, values(DType.FLOAT32, length, wire.rank))
        return out

    results = threads(size, two_levels(size), body)
    parts = [values(DType.FLOAT32, length, rank) for rank in range(size)]
    for rank, result in enumerate(results):
        assert_reduced(result, parts, DType.FLOAT32, ReduceOp.SUM, 1.0, f"rank {rank}")
        assert result.tobytes() == results[0].tobytes()


def test_hosts_whose_ranks_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, through memory that a host's ranks reuse for every second piece; unequal hosts,
    growing sizes.
    """
    monkeypatch.setattr(hierarchical, "PIECE", 40_000)
    lengths, size = [30_001, 60_007, 20_011], 5

    def body(wire: Hierarchical) -> list[np.ndarray]:
        outs = [values(DType.FLOAT32, length, wire.rank) for length in lengths]
        for out in outs:
            wire.allreduce([Buffer(out, out, DType.FLOAT32)], ReduceOp.SUM)
        return outs

    results = threads(size, two_levels(size, share=True), body)
    for rank, outs in enumerate(results):
        for out, length, first in zip(outs, lengths, results[0], strict=True):
            parts = [values(DType.FLOAT32, length, other) for other in range(size)]
            assert_reduced(out, parts, DType.FLOAT32, ReduceOp.SUM, 1.0, f"rank {rank}")
            assert out.tobytes() == first.tobytes()


def test_a_byte_crosses_between_two_hosts_once() -> None:
    """With 2 and 3 ranks per host. In a ring of two, each sends half in either phase."""
    length, sent = 1 << 18, [0] * 5

    def body(wire: Hierarchical) -> None:
        if wire.cross is not None:
            link, rank = wire.cross.link, wire.rank  # type: ignore[attr-defined]
            sendrecv = link.sendrecv

            def count(send: Any, dst: int, receive: Any, src: int) -> None:
                sent[rank] += 0 if send is None else len(send)
                sendrecv(send, dst, receive, src)

            link.sendrecv = count
        data = np.ones(length, np.float32)
        wire.allreduce([Buffer(data, data, DType.FLOAT32)], ReduceOp.SUM)
        assert (data == 5).all()

    threads(5, two_levels(5), body)
    assert [sum(sent[:2]), sum(sent[2:])] == [4 * length] * 2


def test_a_rank_lost_between_pieces_ends_the_exchange(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hierarchical, "PIECE", 40_000)

    def go_on(wire: Hierarchical, data: np.ndarray) -> None:
        for _ in range(100):
            wire.allreduce([Buffer(data, data, DType.FLOAT32)], ReduceOp.SUM)

    def body(wire: Hierarchical) -> str:
        data = np.ones(100_000, np.float32)
        if wire.rank == 3:
            wire.abort("rank 3 has had enough")
        with pytest.raises(PeerLostError) as caught:
            go_on(wire, data)
        return str(caught.value)

    assert all("rank 3 has had enough" in said for said in threads(5, two_levels(5), body))
