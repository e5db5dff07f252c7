"""A rank's weights, as shared with other ranks. Pure, and not thread-safe.

To average, one rank lends a copy of its weights; the other rank moves by half of the difference
towards it and returns the opposite move. Both ranks keep concurrent changes, and the sum of their
weights is preserved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from farandole.core.ps.wire import TYPES

if TYPE_CHECKING:
    from farandole.base.types import Array


class SharedWeights:
    """Weights for averages with other ranks.

    They start as ``first``, arrays of float32 or float64; the last ``statistics`` arrays are
    untrained. ``gamma``: the fraction of the distance to their mean that two ranks move.
    Attributes: ``flat``, all values in one array for each dtype; ``averages``, the number of
    averages with other ranks.
    """

    def __init__(self, first: Sequence[Array], statistics: int = 0, gamma: float = 1.0) -> None:
        self._gamma = gamma
        kinds = [array.dtype.newbyteorder("<").str for array in first]
        self.flat = [
            np.empty(
                sum(array.size for array, own in zip(first, kinds, strict=True) if own == kind),
                dtype=kind,
            )
            for kind in TYPES
            if kind in kinds
        ]
        self.sizes = [array.size for array in first]
        self._views = self._cut(first)
        self.averages = self._seen = 0
        for view, array in zip(self._views, first, strict=True):
            view[...] = array
        self._trained = len(first) - statistics
        # their values at the last ``take``
        self._statistics = [view.copy() for view in self._views[self._trained :]]

    def _cut(self, first: Sequence[Array]) -> list[Array]:
        begins, found = [0] * len(self.flat), []
        for array in first:
            place = [flat.dtype for flat in self.flat].index(array.dtype)
            begin, begins[place] = begins[place], begins[place] + array.size
            found.append(self.flat[place][begin : begin + array.size].reshape(array.shape))
        return found

    @property
    def trained(self) -> list[Array]:
        """The weights, as views of ``flat``."""
        return self._views[: self._trained]

    @property
    def statistics(self) -> list[Array]:
        """The untrained values, as views of ``flat``."""
        return self._views[self._trained :]

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The dtypes and lengths of the arrays in ``flat``."""
        return [(flat.dtype.newbyteorder("<").str, flat.size) for flat in self.flat]

    def take(self, changes: Sequence[Array], damp: bool = False) -> int:
        """Add changes of weights and update the statistics, then overwrite ``changes`` with the
        results.

        Return the number of averages since the last call; with ``damp``, changes are divided by it.
        """
        stale, self._seen = self.averages - self._seen, self.averages
        for view, change in zip(self._views[: self._trained], changes, strict=False):
            if damp and stale > 1:
                change /= stale
            view += change
            change[...] = view
        kept = zip(
            self._views[self._trained :], changes[self._trained :], self._statistics, strict=True
        )
        for view, value, last in kept:
            view += value - last
            value[...] = view
            last[...] = view
        return stale

    def correct(self, moves: Sequence[Array], statistics: Sequence[Array]) -> None:
        """Move from the result of the last ``take`` to the common values of all ranks.

        ``moves``: changes of weights; ``statistics``: new values. The next ``take`` still counts
        the averages since the last one.
        """
        for view, move in zip(self._views, moves, strict=False):
            view += move
        for view, value, last in zip(
            self._views[self._trained :], statistics, self._statistics, strict=True
        ):
            view += value - last
            last[...] = value

    def lend(self, into: Sequence[Array]) -> None:
        """Copy the weights into a message for a partner's ``halve``."""
        for flat, copy in zip(self.flat, into, strict=True):
            copy[:] = flat

    def halve(self, theirs: Sequence[Array]) -> None:
        """Move half of the distance, times ``gamma``, towards a partner's weights, and overwrite
        these with the partner's move.
        """
        for flat, other in zip(self.flat, theirs, strict=True):
            np.subtract(flat, other, out=other)
            other *= 0.5 * self._gamma
            flat -= other
        self.averages += 1

    def move(self, moves: Sequence[Array]) -> None:
        """Apply the move that a partner returned to this rank."""
        for flat, move in zip(self.flat, moves, strict=True):
            flat += move
        self.averages += 1

    def undo(self, moves: Sequence[Array]) -> None:
        """Undo a ``halve`` whose answer did not reach the partner."""
        for flat, move in zip(self.flat, moves, strict=True):
            flat += move
        self.averages -= 1
