"""Consecutive arrays in memory are one array, without a copy."""

from __future__ import annotations

import numpy as np

from farandole.core.groups import checked


def test_parts_of_one_piece_of_memory_are_not_copied() -> None:
    whole = np.arange(12, dtype=np.float32)
    nothing = np.empty(0, np.float32)
    parts = [
        nothing,
        *(np.frombuffer(whole, np.float32, 4, 4 * start) for start in (0, 4, 8)),
        nothing,
    ]
    found = checked._joined(parts)
    assert np.array_equal(found, whole)
    assert np.shares_memory(found, whole)
    found[5] = 70.0
    del parts
    assert whole[5] == 70.0
    for others in (
        parts_of(whole, 0, 8, 4),
        parts_of(whole, 0, 5, 8),
        [whole[:4], whole[8:].copy()],
    ):
        assert not np.shares_memory(checked._joined(others), whole)
        assert np.array_equal(checked._joined(others), np.concatenate(others))
    assert len(checked._joined([nothing, nothing])) == 0


def parts_of(whole: np.ndarray, *starts: int) -> list[np.ndarray]:
    return [whole[start : start + 4] for start in starts]
