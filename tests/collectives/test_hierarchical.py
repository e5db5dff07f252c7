"""Two levels of wires pass the same kit as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farandole.collectives import over
from farandole.collectives.hierarchical import SMALL, Hierarchical
from farandole.transports.inproc import World
from farandole.types import Buffer, DType, ReduceOp
from tests.kits.oracle import assert_reduced, values
from tests.kits.transport import TransportKit
from tests.pool import threads

HOSTS = {1: 1, 2: 1, 3: 1, 4: 2, 5: 1, 6: 2}  # ranks per host


def joiner(size: int) -> Callable[[int], Any]:
    each = HOSTS[size]
    flat = World(size)
    local = [World(each) for _ in range(size // each)]
    cross = [World(size // each) for _ in range(each)]

    def join(rank: int) -> Hierarchical:
        host, index = divmod(rank, each)
        hosts = [range(first, first + each) for first in range(0, size, each)]
        return Hierarchical(over(flat.link(rank)), over(local[host].link(index)), over(cross[index].link(host)), hosts)

    return join


class TestHierarchical(TransportKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        return joiner(size)


@pytest.mark.parametrize("size", [4, 6])
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MAX])
def test_large_ones_go_in_slices(size: int, dtype: DType, op: ReduceOp) -> None:
    lengths = [SMALL // dtype.itemsize + 1, 7]
    scale = 1 / size if op is ReduceOp.SUM and dtype is not DType.BOOL else 1.0

    def body(wire: Hierarchical) -> list[np.ndarray]:
        def no(*args: Any) -> None:
            raise AssertionError("a large tensor went over the flat wire")

        wire.flat.allreduce = no  # type: ignore[method-assign]
        arrays = [values(dtype, length, wire.rank) for length in lengths]
        wire.allreduce([Buffer(array, array, dtype) for array in arrays], op, scale)
        return arrays

    results = threads(size, joiner(size), body)
    for place, length in enumerate(lengths):
        parts = [values(dtype, length, rank) for rank in range(size)]
        for rank in range(size):
            assert_reduced(results[rank][place], parts, dtype, op, scale, f"rank {rank}")
            assert results[rank][place].tobytes() == results[0][place].tobytes()
