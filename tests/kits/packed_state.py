"""Check that a model's packed state continues in another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def check_continues(made: Callable[[], tuple[Any, Any]]) -> bytes:
    """Check that a model continues from another model's packed state, and return that state.

    ``made`` creates a state with ``epoch=0`` and its compiled Keras model of two inputs and one
    output, with momentum.
    """
    x, y = np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32)
    (first, model), (second, other) = made(), made()
    model.train_on_batch(x, y)
    first.epoch = 3
    first.save()
    packed: bytes = first.to_bytes(first.saved_values())
    model.train_on_batch(x, y)
    second.from_bytes(packed)
    other.train_on_batch(x, y)
    assert second.epoch == 3
    for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    return packed
