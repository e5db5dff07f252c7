"""Early termination: policies that end unpromising runs of a sweep. All functions are pure.

A history is the list of a run's reported values of the primary metric. Reports are numbered from 1.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from farandole.errors import SettingsError

History = Sequence[float]


class Policy(Protocol):
    """The decision, at each report of a run, whether to end the run."""

    def ends(self, run: str, histories: Mapping[str, History], maximize: bool) -> bool:
        """Return whether ``run`` should end, given the histories of all runs of the sweep."""


class NoPolicy(NamedTuple):
    """A policy that ends no run."""

    def ends(self, run: str, histories: Mapping[str, History], maximize: bool) -> bool:
        return False


class Bandit(NamedTuple):
    """Ends a run whose best value is worse than the best of all runs by more than a slack.

    Set either ``slack_factor`` (0.1 means ten percent) or ``slack_amount`` (in units of the
    metric). After ``delay_evaluation`` reports, every ``evaluation_interval``-th report is judged.
    """

    slack_factor: float = 0.0
    slack_amount: float = 0.0
    evaluation_interval: int = 1
    delay_evaluation: int = 0

    def ends(self, run: str, histories: Mapping[str, History], maximize: bool) -> bool:
        if not _due(histories[run], self.evaluation_interval, self.delay_evaluation):
            return False
        own = best(histories[run], maximize)
        top = best([best(each, maximize) for each in histories.values() if each], maximize)
        slack = self.slack_amount or abs(top) * self.slack_factor / (1 + self.slack_factor)
        if not maximize and not self.slack_amount:
            slack = abs(top) * self.slack_factor
        return own < top - slack if maximize else own > top + slack


class MedianStopping(NamedTuple):
    """Ends a run whose best value is worse than the median running average of the others."""

    evaluation_interval: int = 1
    delay_evaluation: int = 0

    def ends(self, run: str, histories: Mapping[str, History], maximize: bool) -> bool:
        if not _due(histories[run], self.evaluation_interval, self.delay_evaluation):
            return False
        count = len(histories[run])
        averages = [
            statistics.fmean(each[:count])
            for name, each in histories.items()
            if name != run and each
        ]
        if not averages:
            return False
        own, middle = best(histories[run], maximize), statistics.median(averages)
        return own < middle if maximize else own > middle


class Truncation(NamedTuple):
    """Ends the worst ``percentage`` of the runs at each evaluation, compared after the same number
    of reports.
    """

    percentage: float
    evaluation_interval: int = 1
    delay_evaluation: int = 0

    def ends(self, run: str, histories: Mapping[str, History], maximize: bool) -> bool:
        if not _due(histories[run], self.evaluation_interval, self.delay_evaluation):
            return False
        count = len(histories[run])
        values = {
            name: best(each[:count], maximize)
            for name, each in histories.items()
            if len(each) >= count
        }
        order = sorted(values, key=lambda name: values[name], reverse=maximize)
        kept = len(order) - int(len(order) * self.percentage / 100)
        return order.index(run) >= kept


def _due(history: History, interval: int, delay: int) -> bool:
    count = len(history)
    return count > delay and count > 0 and count % interval == 0


def best(history: History, maximize: bool) -> float:
    """Return the best value of a history, which must not be empty."""
    return max(history) if maximize else min(history)


POLICIES: dict[str, Any] = {
    "none": NoPolicy,
    "bandit": Bandit,
    "median": MedianStopping,
    "truncation": Truncation,
}


def make_policy(kind: str, arguments: Mapping[str, Any]) -> Policy:
    """Return a policy by its name. Raises SettingsError for an invalid name, argument or value."""
    if kind not in POLICIES:
        raise SettingsError(f"there is no policy {kind!r} (policies: {', '.join(POLICIES)})")
    try:
        made: Any = POLICIES[kind](**arguments)
    except TypeError as error:
        raise SettingsError(f"policy {kind!r}: {error}") from None
    if getattr(made, "evaluation_interval", 1) < 1:
        raise SettingsError(
            f"policy {kind!r}: evaluation_interval must be at least 1,"
            f" not {made.evaluation_interval}"
        )
    if kind == "bandit" and bool(made.slack_factor) == bool(made.slack_amount):
        raise SettingsError(
            "policy 'bandit' needs either slack_factor or slack_amount, but has"
            f" slack_factor={made.slack_factor} and slack_amount={made.slack_amount}"
        )
    if kind == "truncation" and not 0 < made.percentage < 100:
        raise SettingsError(
            f"policy 'truncation': percentage must be between 0 and 100, not {made.percentage}"
        )
    policy: Policy = made
    return policy
