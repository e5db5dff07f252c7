"""The combined statistics of parts equal the statistics of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.core.api.batch_norm import combined


def row(values: Any) -> Any:
    count = len(values)
    mean = values.mean(axis=0) if count else np.full(values.shape[1], np.nan)
    return np.concatenate([[count], mean, ((values - mean) ** 2).sum(axis=0)])


@pytest.mark.parametrize("cuts", [[4], [0], [1, 1, 9], [3, 7], []], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_any_parts(cuts: list[int], offset: float) -> None:
    values = np.random.default_rng(0).normal(size=(10, 3)) + offset
    count, mean, variance = combined(np.stack([row(part) for part in np.split(values, cuts)]))
    assert count == 10
    np.testing.assert_allclose(mean, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance, values.var(axis=0), rtol=1e-9)


def test_statistics_of_empty_batches_are_zero() -> None:
    count, mean, variance = combined(np.stack([row(np.empty((0, 2)))] * 2))
    assert count == 0
    assert (mean == 0).all()
    assert (variance == 0).all()
