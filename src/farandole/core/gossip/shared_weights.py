"""The numbers of a rank's weights as other ranks see them: pure, and not for two threads at once.

Two ranks average by this: one lends a copy of its numbers, the other moves by half of the
difference to its own and gives that back. What either has learned meanwhile stays, and so does the
sum of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from farandole.core.ps.wire import TYPES

if TYPE_CHECKING:
    from farandole.base.types import Array


class SharedWeights:
    """Begins as ``first``, arrays of float32 or float64; the last ``statistics`` of them are values
    that nobody trains.

    ``flat``: all of them, an array for each type. ``averages``: with other ranks, so far.
    ``gamma``: how much of the way to their mean two ranks go.
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
        # as they were taken
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
        """The values that nobody trains, as views of ``flat``."""
        return self._views[self._trained :]

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Type and number of what ``flat`` holds."""
        return [(flat.dtype.newbyteorder("<").str, flat.size) for flat in self.flat]

    def take(self, changes: Sequence[Array], damp: bool = False) -> int:
        """Add changes of weights, and take on statistics as they are now; what there is then stands
        in their place. Returns the averages since the last call; ``damp``: changes are divided by
        them.
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

    def correct(self, ways: Sequence[Array], statistics: Sequence[Array]) -> None:
        """Go from what the last ``take`` gave to what all ranks have agreed on: ways of weights,
        and statistics. The next ``take`` finds changes from there, and still counts the averages
        since the last one.
        """
        for view, way in zip(self._views, ways, strict=False):
            view += way
        for view, value, last in zip(
            self._views[self._trained :], statistics, self._statistics, strict=True
        ):
            view += value - last
            last[...] = value

    def lend(self, into: Sequence[Array]) -> None:
        """A copy, for a partner's ``halve``."""
        for flat, copy in zip(self.flat, into, strict=True):
            copy[:] = flat

    def halve(self, theirs: Sequence[Array]) -> None:
        """Go half of the way, times ``gamma``, to what a partner has lent; the way that is left to
        it stands in its place then.
        """
        for flat, other in zip(self.flat, theirs, strict=True):
            np.subtract(flat, other, out=other)
            other *= 0.5 * self._gamma
            flat -= other
        self.averages += 1

    def move(self, ways: Sequence[Array]) -> None:
        """Go the way that a partner has left."""
        for flat, way in zip(self.flat, ways, strict=True):
            flat += way
        self.averages += 1

    def undo(self, ways: Sequence[Array]) -> None:
        """Of a ``halve``: the partner did not hear of it."""
        for flat, way in zip(self.flat, ways, strict=True):
            flat += way
        self.averages -= 1
