"""Cuts of a stack of layers into stages, and of a batch into micro batches. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def balanced(costs: Sequence[float], stages: int) -> list[int]:
    """Return the first layer of each stage, minimizing the cost of the most expensive stage.

    ``costs``: of each layer. A layer with cost 0 stays with the layer before it, and every stage
    has a layer with a cost. Raises ValueError if fewer layers have a cost than there are stages.
    """
    heavy = [place for place, cost in enumerate(costs) if cost > 0]
    if len(heavy) < stages:
        raise ValueError(
            f"stages={stages} is more than the {len(heavy)} layers with weights (of {len(costs)}"
            " layers). Use fewer stages"
        )
    sums = [0.0, *itertools.accumulate(costs[place] for place in heavy)]
    # best[first]: the cost of the most expensive stage if the heavy layers from `first` on are
    # divided among the stages so far
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
    """Return the heavy layer that begins the next stage, if this stage begins with ``first``."""
    return min(range(first + 1, len(sums)), key=lambda end: max(sums[end] - sums[first], best[end]))


def parts(rows: int, micro_batches: int) -> list[int]:
    """Return the number of rows of each micro batch: equal, or one more in the first ones. With too
    few rows, there are fewer micro batches.
    """
    count = min(rows, micro_batches)
    return [rows // count + (number < rows % count) for number in range(count)]
