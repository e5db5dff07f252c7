"""``compare``: the measures, the differences and the fairness of several runs in one object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from farandole.errors import SettingsError, did_you_mean
from farandole.job.runs.folder import RunFolder
from farandole.jobs.comparison.curves import RunCurve, common_metrics, curve
from farandole.jobs.comparison.differences import differences
from farandole.jobs.comparison.equal_value import (
    MAXIMIZE,
    MINIMIZE,
    EqualValue,
    by_relevance,
    equal_value,
    goal_of,
)
from farandole.jobs.comparison.fairness import fairness
from farandole.jobs.comparison.measures import RunMeasures, measures
from farandole.jobs.comparison.result import ComparedRuns
from farandole.jobs.comparison.sources import environment_differences, source_differences
from farandole.jobs.comparison.text import described
from farandole.jobs.redaction import redacted, redacted_value

_MOST_CURVES = 24


class Comparison(ComparedRuns):
    """The comparison of runs, which prints as a table with the reasons against it."""

    def __repr__(self) -> str:
        """Return the comparison as a table, with the reasons why the runs are not comparable.

        Notebooks store this text, so it contains no secrets, and only the last parts of paths.
        """
        shown = replace(
            self,
            differences=_without_secrets(self.differences),
            environment=_without_secrets(self.environment),
        )
        return redacted(described(shown))


def compare(
    folders: Sequence[RunFolder], *, metric: str | None = None, goal: str | None = None
) -> Comparison:
    """Return the comparison of two or more runs.

    Arguments:
        folders: The folders of the runs.
        metric: The metric for the equal value; by default the best measure of a model's quality
            (see ``by_relevance``).
        goal: ``maximize`` or ``minimize``; by default derived from the name of the metric or from
            its curves (see ``goal_of``).

    The comparison has the curves of at most 24 metrics: ``metric``, and the best measures of a
    model's quality. Raises SettingsError for an invalid ``goal``, for a metric that a run lacks, or
    for a ``metric`` of unknown goal, and RunError if the folder of a run is damaged.
    """
    found = tuple(measures(folder) for folder in folders)
    names = common_metrics(folders)
    shown = by_relevance(names)[:_MOST_CURVES]
    if metric is not None and metric not in names:
        raise SettingsError(
            f"the runs have no common metric {metric!r}{did_you_mean(metric, names)}; common"
            f" metrics: {', '.join(shown) or 'none'}{', ...' if len(names) > len(shown) else ''}"
        )
    if metric is not None and metric not in shown:
        shown[-1] = metric
    if goal not in (None, MAXIMIZE, MINIMIZE):
        raise SettingsError(f"goal={goal!r} must be {MAXIMIZE} or {MINIMIZE}")
    curves = {
        name: [curve(folder, name, run.began) for folder, run in zip(folders, found, strict=True)]
        for name in sorted(shown)
    }
    if metric is not None and goal is None:
        goal = _goal(metric, curves[metric])
    return Comparison(
        measures=found,
        differences=differences(folders),
        environment=environment_differences(folders),
        source=source_differences(folders),
        curves=curves,
        equal=_equal(curves, found, metric, goal),
        unfair=tuple(fairness(found)),
    )


def _without_secrets(facts: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return facts of several runs without secrets; None stays None."""
    return {
        name: [None if value is None else redacted_value(name, str(value)) for value in values]
        for name, values in facts.items()
    }


def _goal(metric: str, curves: Sequence[RunCurve]) -> str:
    found = goal_of(metric, curves)
    if found is None:
        raise SettingsError(
            f"neither the name of the metric {metric!r} nor its curves show whether larger values"
            f" are better; add --goal {MAXIMIZE} or --goal {MINIMIZE} (in Python: goal={MAXIMIZE!r}"
            f" or goal={MINIMIZE!r})"
        )
    return found


def _equal(
    curves: dict[str, list[RunCurve]],
    runs: Sequence[RunMeasures],
    metric: str | None,
    goal: str | None,
) -> EqualValue | None:
    metric = metric or next(iter(by_relevance(list(curves))), None)
    if metric is None:
        return None
    found = goal or goal_of(metric, curves[metric])
    if found is None:
        return None
    return equal_value(metric, found, curves[metric], [(run.seconds, run.samples) for run in runs])
