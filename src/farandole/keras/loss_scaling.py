"""Optimizers whose loss is scaled: ranks skip a step whose gradients are not finite, so all must
find the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

NO_STRATEGY = (
    "strategy={spec!r} cannot be used with a LossScaleOptimizer: ranks skip steps for themselves,"
    " and would exchange weights at different steps. Use mixed_bfloat16, or strategy='allreduce'"
)


def marked(
    gradients: Sequence[Any],
    shared: Sequence[int],
    local: Sequence[int],
    zero_of: Callable[[Any], Any],
    add: Callable[[Any, Any], Any],
) -> list[Any]:
    """``gradients``; where one at the places ``local``, which stay on this rank, is not finite, no
    shared one is.

    ``zero_of``: the sum of a gradient times 0, which is NaN then. ``add``: a gradient and such a
    number.
    """
    results = list(gradients)
    if shared and local:
        for place in local:
            results[shared[0]] = add(results[shared[0]], zero_of(gradients[place]))
    return results
