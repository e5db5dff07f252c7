"""Clipping by a norm of all gradients, where some of them are left to each rank; for Keras 3 and
Keras 2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any


def by_parts(
    clip: Callable[[list[Any]], Sequence[Any]], items: Sequence[Any], shared: Collection[int]
) -> list[Any]:
    """``clip`` of the gradients at the places ``shared``, and of the others for themselves: a norm
    of both would differ between ranks, and so would what becomes of the variables that they share.
    """
    results = list(items)
    for part in (sorted(shared), sorted(set(range(len(results))) - set(shared))):
        for place, item in zip(
            part, clip([results[place] for place in part]) if part else (), strict=True
        ):
            results[place] = item
    return results
