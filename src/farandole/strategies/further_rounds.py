"""Further rounds of a step: gradients that grow after they have been reduced.

A further round averages the gradients of the ranks that have not joined. The parts reduced by an
earlier round are the same on these ranks and do not change. A new part is multiplied first, so that
its mean over these ranks is the desired sum or average over all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from farandole.base.types import ReduceOp
from farandole.core.engine import Engine
from farandole.job import context
from farandole.strategies.buckets import Gradient
from farandole.strategies.options import GradientOptions


class ReducedParts:
    """The reduced parts of gradients that may still grow in a step, by index.

    ``factor``: the multiplier of new parts. ``options``: the reduction of a further round.
    """

    def __init__(self, options: GradientOptions) -> None:
        self._sums = options.op is ReduceOp.SUM
        self._parts: dict[int, Any] = {}
        self.factor = 1.0
        self.options = options.of_reduced()

    def __contains__(self, index: int) -> bool:
        return index in self._parts

    @property
    def needed(self) -> bool:
        """Return whether new parts are multiplied, so that reduced parts must be kept."""
        return self._sums or self.factor != 1

    def clear(self) -> None:
        """Begin a step."""
        self._parts = {}

    def count(self, engine: Engine, options: GradientOptions) -> None:
        """Record the number of ranks of ``engine`` that have not joined. None can join before the
        end of this round, which needs their gradients.
        """
        present, size = engine.present, engine.size
        if present == size:
            self.factor = float(size) if self._sums else 1.0
            self.options = options.of_reduced()
            return
        divisor = present if context.settings().join_mean_of_present else size
        self.factor = float(present) if self._sums else present / divisor
        self.options = options.of_reduced()._replace(postscale=divisor / present)

    def keep(self, indexes: Iterable[int], gradients: Sequence[Gradient]) -> None:
        """Copy the reduced gradients of ``indexes``."""
        self._parts |= {index: gradients[index].copy() for index in indexes}

    def keep_only(self, indexes: Iterable[int]) -> None:
        """Drop the parts of all other gradients."""
        self._parts = {index: self._parts[index] for index in indexes if index in self._parts}

    def amplify_new(self, index: int, gradient: Gradient) -> None:
        """Multiply the new part of a gradient by ``factor``."""
        gradient.amplify(self.factor, self._parts.get(index))
