"""The optimizer states of parameter servers in a commit, by the names of the weights, so that a job
with any number of servers can continue from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from farandole.core.ps.centre import KINDS
from farandole.core.ps.clocks import Rule

if TYPE_CHECKING:
    from farandole.base.types import Array


class SavedOptimizer(NamedTuple):
    """The state of one optimizer on the servers.

    - ``name``: The name of its centre.
    - ``optimizer``: The kind of the servers' optimizer.
    - ``weights``: The name and shape of each weight.
    - ``steps``: The number of its steps.
    - ``kept``: For each kind (momentum, ...), a flat array for each weight; empty before the first
      step.
    """

    name: str
    optimizer: str
    weights: list[tuple[str, tuple[int, ...]]]
    steps: int
    kept: list[list[Array]]

    def fits(self, rule: Rule, weights: Sequence[tuple[str, tuple[int, ...]]]) -> bool:
        """Return whether this is a state of a centre with this rule and these weights."""
        return self.optimizer == rule.optimizer and self.weights == list(weights)


class LoadedStates:
    """The states from the commit on disk from which the job continues.

    ``commit``: the number of that commit; 0: none. ``states``: None if the commit has no states of
    servers.
    """

    def __init__(self, commit: int = 0, states: list[SavedOptimizer] | None = None) -> None:
        self.commit, self.states = commit, states
        self.warned = False

    def find(
        self,
        name: str,
        rule: Rule,
        weights: Sequence[tuple[str, tuple[int, ...]]],
        taken: Sequence[SavedOptimizer],
    ) -> SavedOptimizer | None:
        """Return the state for the centre ``name``; None without one.

        Among the states that fit and are not ``taken`` by another centre, the state of the centre
        with the same name is preferred.
        """
        found = [
            each
            for each in self.states or ()
            if _label(each.name) == _label(name)
            and each.fits(rule, weights)
            and not any(each is other for other in taken)
        ]
        same = [each for each in found if _optimizer(each.name) == _optimizer(name)]
        return next(iter(same or found), None)

    def lacks(self, rule: Rule) -> bool:
        """Return whether a centre with this rule that found no state begins without one that its
        training had.
        """
        return bool(self.commit and rule.optimizer in KINDS and self.states != [])

    def drop(self, taken: Sequence[SavedOptimizer]) -> None:
        """Drop the states that the servers themselves keep from now on."""
        if self.states:
            self.states = [
                each for each in self.states if not any(each is other for other in taken)
            ]


def _label(name: str) -> str:
    return name.partition(".weights.")[0]


def _optimizer(name: str) -> str:
    """Return the name without the ranks at its end."""
    return name.partition("/")[0]
