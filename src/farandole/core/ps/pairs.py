"""The numbers of a rank's weights as other ranks see them: pure, and not for two threads at once.

Two ranks average by this: one lends a copy of what it has, the other takes half of the difference
to its own and gives that back (``WholeAverages``). What either has learned meanwhile stays, and the
sum of both does, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from farandole.core.ps.wire import TYPES

if TYPE_CHECKING:
    from farandole.base.types import Array


class SharedWeights:
    """Begins as ``first``, arrays of float32 or float64; the last ``statistics`` of them are values
    that nobody trains.

    ``flat``: all of them, an array for each type. ``averages``: with other ranks, so far.
    """

    def __init__(self, first: Sequence[Array], statistics: int = 0) -> None:
        kinds = [array.dtype.newbyteorder("<").str for array in first]
        self.flat = [
            np.empty(
                sum(array.size for array, own in zip(first, kinds, strict=True) if own == kind),
                dtype=kind,
            )
            for kind in TYPES
            if kind in kinds
        ]
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

    def halve(self, theirs: Sequence[Array], gamma: float = 1.0) -> None:
        """Go half of the way, times ``gamma``, to what a partner has lent; the way that is left to
        it stands in its place then.
        """
        for flat, other in zip(self.flat, theirs, strict=True):
            np.subtract(flat, other, out=other)
            other *= 0.5 * gamma
            flat -= other
        self.averages += 1

    def move(self, ways: Sequence[Array]) -> None:
        """Go the way that a partner has left."""
        for flat, way in zip(self.flat, ways, strict=True):
            flat += way
        self.averages += 1

    def go(self, ways: Sequence[Array], statistics: Sequence[Array], averages: int = 1) -> None:
        """Go these ways, of weights and of statistics, which is so many averages more."""
        for view, way in zip(self._views, (*ways, *statistics), strict=True):
            view += way
        self.averages += averages

    def undo(self, ways: Sequence[Array]) -> None:
        """Of a ``halve``: the partner did not hear of it."""
        for flat, way in zip(self.flat, ways, strict=True):
            flat += way
        self.averages -= 1


class Averages(Protocol):
    """What travels when a rank averages with a partner, and what becomes of it. One average at a
    time; ``rank``: the partner's number in the job.
    """

    def greeting(self, rank: int) -> dict[str, Any]:
        """What a partner needs to know before: of those that ask, and of those that answer."""

    def greeted(self, rank: int, greeting: dict[str, Any]) -> None:
        """The partner's greeting. Raises ValueError for one that cannot be."""

    def lend(self, rank: int) -> Sequence[Array]:
        """What goes to a partner that is asked."""

    def room(self, sizes: Sequence[int]) -> Sequence[Array]:
        """Memory for what a partner sends: arrays with so many bytes. Raises ValueError for what it
        cannot send.
        """

    def halve(self, rank: int, lent: Sequence[Array]) -> Sequence[Array]:
        """A partner that asks has lent this. Go half of the way to it; what goes back."""

    def undo(self, rank: int) -> None:
        """Of the last ``halve``: the partner did not hear of it."""

    def move(self, rank: int, given: Sequence[Array]) -> None:
        """The answer of a partner that was asked. Go the way that is left to this rank."""

    def forget(self) -> None:
        """The weights are others now: nothing that partners know of them counts."""


class WholeAverages:
    """All of the numbers travel, both ways. ``gamma``: how much of the way to their mean two ranks
    go.
    """

    def __init__(self, shared: SharedWeights, gamma: float = 1.0) -> None:
        self._shared, self._memory, self._gamma = (
            shared,
            [flat.copy() for flat in shared.flat],
            gamma,
        )

    def greeting(self, rank: int) -> dict[str, Any]:
        return {}

    def greeted(self, rank: int, greeting: dict[str, Any]) -> None:
        pass

    def lend(self, rank: int) -> Sequence[Array]:
        self._shared.lend(self._memory)
        return self._memory

    def room(self, sizes: Sequence[int]) -> Sequence[Array]:
        return self._memory

    def halve(self, rank: int, lent: Sequence[Array]) -> Sequence[Array]:
        self._shared.halve(lent, self._gamma)
        return lent

    def undo(self, rank: int) -> None:
        self._shared.undo(self._memory)

    def move(self, rank: int, given: Sequence[Array]) -> None:
        self._shared.move(given)

    def forget(self) -> None:
        pass
