"""Where a stack of layers is cut into stages, and a batch into micro batches. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def balanced(costs: Sequence[float], stages: int) -> list[int]:
    """The layer with which each stage begins, so that the most expensive stage is as cheap as can
    be. ``costs``: of each layer. A layer that costs nothing stays with the one before it, and every
    stage has one that costs something.

    Raises ValueError if fewer layers cost something than there are stages.
    """
    heavy = [place for place, cost in enumerate(costs) if cost > 0]
    if len(heavy) < stages:
        raise ValueError(
            f"stages={stages}, but only {len(heavy)} of the {len(costs)} layers have weights: take"
            " fewer"
        )
    sums = [0.0, *itertools.accumulate(costs[place] for place in heavy)]
    # best[first]: the cost of the most expensive stage if the heavy layers from `first` on are
    # shared out so far
    best = [*(sums[-1] - each for each in sums[:-1]), float("inf")]
    chosen: list[list[int]] = []
    for _ in range(stages - 1):
        ends = [_best_end(first, sums, best) for first in range(len(heavy))]
        best = [max(sums[end] - sums[first], best[end]) for first, end in enumerate(ends)] + [
            float("inf")
        ]
        chosen.append(ends)
    begins = [0]
    for ends in reversed(chosen):
        begins.append(ends[begins[-1]])
    return [0, *(heavy[number] for number in begins[1:])]


def _best_end(first: int, sums: Sequence[float], best: Sequence[float]) -> int:
    """With which heavy layer to begin the next stage, if this one begins with ``first``."""
    return min(range(first + 1, len(sums)), key=lambda end: max(sums[end] - sums[first], best[end]))


def parts(rows: int, micro_batches: int) -> list[int]:
    """The rows of each micro batch: equally many, or one more in the first ones; fewer micro
    batches if there are not as many rows.
    """
    count = min(rows, micro_batches)
    return [rows // count + (number < rows % count) for number in range(count)]
