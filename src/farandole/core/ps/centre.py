"""The centre's values: a server's share of the weights, the optimizer's state and the
statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from farandole.core.ps.clocks import Clocks, Fate, PushDecision

if TYPE_CHECKING:
    from farandole.base.types import Array

BETA, EPSILON = 0.999, 1e-8  # Adam's constants; EPSILON is also Adagrad's
KINDS = {"momentum": 1, "adagrad": 1, "adam": 2}  # arrays kept for each array of weights


class OptimizerState(NamedTuple):
    """The state of a server's optimizer: the number of its steps, and its arrays by kind (momentum,
    ...) and part.
    """

    steps: int
    kept: list[list[Array]]


class Centre:
    """One server's share of a centre.

    ``clocks``: the decisions on pushes; ``values``: flat arrays, which belong to the centre
    afterwards. The last ``statistics`` of them are untrained: ranks push their values, not their
    changes.

    The pushes of a synchronous step are added up in the order of ranks, not of arrival, so that
    equal runs are bitwise identical.
    """

    def __init__(self, clocks: Clocks, values: Sequence[Array], statistics: int = 0) -> None:
        self.clocks = clocks
        self.rule = clocks.rule
        self.values = list(values)
        rule = clocks.rule
        self._trained = len(self.values) - statistics
        self._sums = [np.zeros_like(value) for value in self.values] if rule.sync else []
        # collected pushes not added to the sums yet, because a lower rank is awaited
        self._held: dict[int, Sequence[Array]] = {}
        self._summed: set[int] = set()  # ranks whose pushes are in the sums
        self._kept = [
            [np.zeros_like(value) for value in self.values[: self._trained]]
            for _ in range(KINDS.get(rule.optimizer, 0))
        ]
        self._steps = 0

    @property
    def optimizer_state(self) -> OptimizerState:
        """A copy of the optimizer's state."""
        return OptimizerState(self._steps, [[one.copy() for one in kept] for kept in self._kept])

    @optimizer_state.setter
    def optimizer_state(self, state: OptimizerState) -> None:
        self._steps = state.steps
        self._kept = [[one.copy() for one in kept] for kept in state.kept]

    def continued(self, clocks: Clocks) -> Centre:
        """Return this centre, with its weights and its optimizer's state, for different ranks. This
        object must not be used afterwards.
        """
        after = Centre(clocks, self.values, len(self.values) - self._trained)
        after._steps, after._kept = self._steps, self._kept
        return after

    def collected(self) -> tuple[list[int], list[int], list[Array]]:
        """Return the incomplete step: the ranks of held pushes, the ranks in the sums, and the
        arrays of the sums and the held pushes.
        """
        held = sorted(self._held)
        arrays = [*self._sums, *(array for rank in held for array in self._held[rank])]
        return held, sorted(self._summed), arrays

    def collect(self, held: Sequence[int], summed: Sequence[int], arrays: Sequence[Array]) -> None:
        """Continue an incomplete step (see ``collected``)."""
        count = len(self.values)
        if self._sums:
            self._sums, arrays = list(arrays[:count]), arrays[count:]
        self._held = {
            rank: arrays[place * count : (place + 1) * count] for place, rank in enumerate(held)
        }
        self._summed = set(summed)

    def push(self, rank: int, number: int, pulled: int, changes: Sequence[Array]) -> PushDecision:
        """Handle a push, and return its decision (see ``Clocks.push``).

        ``changes``: the changes of the weights since the pull of version ``pulled``, then the
        statistics. The centre may overwrite the arrays; the caller must not do so before the rank's
        answer is sent.
        """
        decision = self.clocks.push(rank, number, pulled)
        if decision.fate is Fate.APPLY:
            self._apply(
                changes,
                1.0 / max(decision.staleness, 1) if self.rule.damp else 1.0,
                1.0 / len(self.clocks.ranks),
            )
        elif decision.fate is Fate.COLLECT:
            self._held[rank] = changes
            self._add_in_order()
            self._finish(decision.complete)
        return decision

    def leave(self, rank: int, *, for_good: bool) -> None:
        """Record that a rank left (see ``Clocks.leave``), and apply the pushes of a step completed
        by this.
        """
        self._finish(self.clocks.leave(rank, for_good=for_good))

    def flush(self, rank: int, number: int, changes: Sequence[Array]) -> None:
        """Add a rank's changes since its last pull without counting a step. The rank counts as
        joined afterwards.

        Changes of weights are multiplied by the learning rate and added, without a step of the
        servers' optimizer. Statistics are given as changes, too.
        """
        if not self.clocks.seen(rank, number):
            share = 1.0 / len(self.clocks.ranks)
            scale = (share if self.rule.sync else 1.0) * (
                1.0 if self.rule.optimizer == "add" else self.rule.lr
            )
            for place, (value, change) in enumerate(zip(self.values, changes, strict=True)):
                value += (scale if place < self._trained else share) * change
        self.clocks.settled.add(rank)
        # also after an interrupted push of the same number
        self.leave(rank, for_good=False)

    def _add_in_order(self) -> None:
        """Add the held pushes of the lowest ranks, up to the first rank that is awaited."""
        for rank in sorted({*self.clocks.here(), *self._held} - self._summed):
            if rank not in self._held:
                return
            self._add(rank)

    def _add(self, rank: int) -> None:
        for total, change in zip(self._sums, self._held.pop(rank), strict=True):
            total += change
        self._summed.add(rank)

    def _finish(self, count: int) -> None:
        if count:
            for rank in sorted(self._held):
                self._add(rank)
            self._summed.clear()
            self._apply(self._sums, 1.0 / count, 1.0 / count, mean=True)
            for total in self._sums:
                total[:] = 0

    def _apply(
        self, changes: Sequence[Array], factor: float, share: float, mean: bool = False
    ) -> None:
        """Take a step of the optimizer. ``share``, ``mean``: see ``_take_in``."""
        self._take_in(changes, share, mean=mean)
        self._steps += 1
        for place, (value, change) in enumerate(
            zip(self.values, changes[: self._trained], strict=False)
        ):
            if factor != 1.0:
                change *= factor
            self._update(value, change, [kept[place] for kept in self._kept])

    def _take_in(self, changes: Sequence[Array], share: float, *, mean: bool) -> None:
        """Merge statistics with the weight ``share``; with ``mean`` they replace the current
        values.
        """
        for value, change in zip(
            self.values[self._trained :], changes[self._trained :], strict=True
        ):
            if not mean:
                change -= value
            else:
                value[:] = 0
            change *= share
            value += change

    def _update(self, value: Array, change: Array, kept: Sequence[Array]) -> None:
        """Take one step of the optimizer for one array, with the gradient ``-change``."""
        rule = self.rule
        if rule.optimizer == "add":
            value += change
        elif rule.optimizer == "sgd":
            value += rule.lr * change
        elif rule.optimizer == "momentum":
            (velocity,) = kept
            velocity *= rule.momentum
            velocity += change
            value += rule.lr * velocity
        elif rule.optimizer == "adagrad":
            (squares,) = kept
            squares += change * change
            value += rule.lr * change / (np.sqrt(squares) + EPSILON)
        else:
            mean, squares = kept
            mean += (1 - rule.momentum) * (change - mean)
            squares += (1 - BETA) * (change * change - squares)
            rate = rule.lr * np.sqrt(1 - BETA**self._steps) / (1 - rule.momentum**self._steps)
            value += rate * mean / (np.sqrt(squares) + EPSILON)
