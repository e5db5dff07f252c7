"""Clipping by a global norm when some gradients stay local to each rank, for Keras 2 and 3."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any


def by_parts(
    clip: Callable[[list[Any]], Sequence[Any]], items: Sequence[Any], shared: Collection[int]
) -> list[Any]:
    """Apply ``clip`` to the gradients at the indices ``shared``, and separately to the others.

    A joint norm would differ between ranks, and so would the updates of the shared variables.
    """
    results = list(items)
    for part in (sorted(shared), sorted(set(range(len(results))) - set(shared))):
        for place, item in zip(
            part, clip([results[place] for place in part]) if part else (), strict=True
        ):
            results[place] = item
    return results
