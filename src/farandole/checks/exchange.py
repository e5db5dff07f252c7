"""Collectives for checks: comparing values over the ranks, and gathering them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.core.engine import Engine, Entry

if TYPE_CHECKING:
    from farandole.base.types import Array


def all_equal(engine: Engine, name: str, values: Sequence[int | None]) -> list[bool | None]:
    """Return for each value (below 2**63) whether it is equal on all ranks; None if it is unknown
    on some rank. Joined ranks do not count. Collective.
    """
    known = [value is not None for value in values]
    numbers = [value if value is not None else 0 for value in values]
    words = np.array([*numbers, *(-number for number in numbers), *known], dtype=np.int64)
    reduce(engine, name, words, DType.INT64, ReduceOp.MIN)
    count = len(numbers)
    return [
        bool(words[number] == -words[count + number]) if words[2 * count + number] else None
        for number in range(count)
    ]


def gathered(engine: Engine, name: str, mine: bytes) -> list[bytes]:
    """Return every rank's ``mine``, by rank; empty for joined ranks (an allgather would fail with
    them). Collective.
    """
    lengths = np.zeros(engine.size, dtype=np.int64)
    lengths[engine.rank] = len(mine)
    reduce(engine, f"{name}.lengths", lengths, DType.INT64, ReduceOp.SUM)
    table = np.zeros((engine.size, int(lengths.max())), dtype=np.uint8)
    table[engine.rank, : len(mine)] = np.frombuffer(mine, dtype=np.uint8)
    reduce(engine, f"{name}.reports", table.reshape(-1), DType.UINT8, ReduceOp.SUM)
    return [row[:length].tobytes() for row, length in zip(table, lengths, strict=True)]


def reduce(engine: Engine, name: str, array: Array, dtype: DType, op: ReduceOp) -> None:
    """Reduce ``array`` in place. Collective."""
    request = Request(name, Kind.ALLREDUCE, dtype, array.shape, op)
    engine.run([Entry(request, Buffer(array, array, dtype))])
