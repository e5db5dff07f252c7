"""PackedValues values: only changed chunks are sent, and any sequence of versions arrives."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.core.api.commits.chunks import CHUNK, PackedValues, Parts, applied, values_of

SIZES = st.lists(st.integers(0, CHUNK // 2), max_size=3)


def test_unchanged_chunks_are_not_sent() -> None:
    array = np.zeros(CHUNK, np.float32)  # four chunks
    known = PackedValues({"a": array, "n": 1}).digests
    array[CHUNK // 2] = 1.0
    delta, chunks = PackedValues({"a": array, "n": 1}).since(known)
    assert [len(chunk) for chunk in chunks] == [CHUNK]
    assert list(delta.changed) == [(1, 2)]
    assert sum(map(len, PackedValues({"a": array, "n": 1}).since([])[1])) > 4 * CHUNK


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(SIZES, st.integers(0, 9)), min_size=1, max_size=5))
def test_versions_arrive_as_they_were(versions: list[tuple[list[int], int]]) -> None:
    parts: Parts = []
    known: list[list[bytes]] = []
    for sizes, number in versions:
        values: Any = [number, [np.full(size, number, np.float64) for size in sizes]]
        packed = PackedValues(values)
        delta, chunks = packed.since(known)
        before = [list(part) for part in parts]
        made = applied(parts, delta, memoryview(b"".join(chunks)))
        assert parts == before
        parts, known = made, packed.digests
        there = values_of(parts)
        assert there[0] == number
        for mine, theirs in zip(values[1], there[1], strict=True):
            np.testing.assert_array_equal(mine, theirs)
            theirs += 1.0  # may be changed
