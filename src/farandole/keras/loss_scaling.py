"""Optimizers with loss scaling.

Ranks skip a step whose gradients are not finite, so all ranks must reach the same decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

NO_STRATEGY = (
    "strategy={spec!r} cannot be used with a LossScaleOptimizer, because each rank skips steps on"
    " its own and would exchange weights at different steps. Use mixed_bfloat16, or"
    " strategy='allreduce'"
)


def marked(
    gradients: Sequence[Any],
    shared: Sequence[int],
    local: Sequence[int],
    zero_of: Callable[[Any], Any],
    add: Callable[[Any, Any], Any],
) -> list[Any]:
    """Return ``gradients``, with all shared ones made non-finite if a local one is.

    ``shared``, ``local``: indices of gradients; the local ones stay on this rank. ``zero_of``:
    returns the sum of a gradient times 0, which is NaN if the gradient is not finite. ``add``: adds
    such a number to a gradient.
    """
    results = list(gradients)
    if shared and local:
        for place in local:
            results[shared[0]] = add(results[shared[0]], zero_of(gradients[place]))
    return results
