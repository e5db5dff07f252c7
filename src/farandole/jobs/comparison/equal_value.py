"""The time that each run needed to reach the same value of a metric.

Runs of different lengths, batches or numbers of ranks are comparable by the time, steps and samples
to one validation value, as in MLPerf's time to train. All functions here are pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from farandole.jobs.comparison.curves import RunCurve

MAXIMIZE, MINIMIZE = "maximize", "minimize"
# Parts of metric names: smaller values are better for the first, larger for the second.
_SMALLER = re.compile(
    r"loss|error|\berr\b|perplexity|\bppl\b|\bm[as]e\b|\brmse\b|\bmape\b|\bwer\b|\bcer\b|\bfid\b"
    r"|\bnll\b|entropy|divergence|regret"
)
_LARGER = re.compile(
    r"acc|\bauc\b|auroc|\bf1\b|precision|recall|\biou\b|\bmap\b|\bbleu\b|rouge|reward|score"
    r"|\br2\b|ndcg|\bmrr\b|dice|kappa|specificity|sensitivity|return\b"
)
_VALIDATION = re.compile(r"(^|[/_. -])(val|valid|validation|eval|evaluation|test|dev)([/_. -]|$)")
# The best measures of a model's quality first.
_PREFERRED = (r"\bauc\b|auroc", r"acc", r"\bf1\b", r"score", r"loss")


@dataclass(frozen=True)
class EqualValue:
    """The cost of one value of a metric. Tuples have an entry per run; None for an unknown cost.

    - ``metric``, ``goal``: The name of the metric; ``maximize`` or ``minimize``.
    - ``value``: The best value that all runs reach.
    - ``seconds``, ``steps``: The seconds since the start of the run's last attempt, and the
      recorded step, at the first value that is at least as good.
    - ``samples``: The samples that all ranks had trained on at this time, in proportion to the
      run's duration.
    - ``best``: The best value of each run.
    """

    metric: str
    goal: str
    value: float
    seconds: tuple[float | None, ...]
    steps: tuple[int | None, ...]
    best: tuple[float | None, ...]
    samples: tuple[float | None, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def goal_of(name: str, curves: Sequence[RunCurve] = ()) -> str | None:
    """Return the goal of a metric, ``maximize`` or ``minimize``; None if unknown.

    The goal follows from the name of the metric; for an unknown name, from the direction in which
    all curves move from their first to their last finite value.
    """
    words = re.sub(r"[/_.\s-]+", " ", name.lower())
    if _SMALLER.search(words):
        return MINIMIZE
    if _LARGER.search(words):
        return MAXIMIZE
    moves = {
        float(np.sign(finite[-1] - finite[0]))
        for finite in (each.values[np.isfinite(each.values)] for each in curves)
        if len(finite) > 1
    }
    return {1.0: MAXIMIZE, -1.0: MINIMIZE}.get(moves.pop()) if len(moves) == 1 else None


def by_relevance(names: Sequence[str]) -> list[str]:
    """Return names of metrics, the best measures of a model's quality first.

    Validation metrics come before others, and an AUC or accuracy before a loss.
    """

    def order(name: str) -> tuple[bool, int, str]:
        words = re.sub(r"[/_.\s-]+", " ", name.lower())
        places = [number for number, part in enumerate(_PREFERRED) if re.search(part, words)]
        return not _VALIDATION.search(name.lower()), places[0] if places else len(_PREFERRED), name

    return sorted(names, key=order)


def equal_value(
    metric: str,
    goal: str,
    curves: Sequence[RunCurve],
    totals: Sequence[tuple[float | None, float | None]] = (),
) -> EqualValue | None:
    """Return the cost of the best value that all runs reach; None if a run has no finite value.

    Arguments:
        metric: The name of the metric.
        goal: ``maximize`` or ``minimize``.
        curves: The metric of each run.
        totals: The duration of each run in seconds, and the samples of all its ranks.
    """
    sign = 1.0 if goal == MAXIMIZE else -1.0
    scores = [np.where(np.isfinite(each.values), sign * each.values, -np.inf) for each in curves]
    if not scores or any(not len(each) or each.max() == -np.inf for each in scores):
        return None
    common = min(float(each.max()) for each in scores)
    first = [int(np.argmax(each >= common)) for each in scores]
    seconds = tuple(float(each.seconds[at]) for each, at in zip(curves, first, strict=True))
    samples = tuple(
        None if not duration or count is None else count * min(1.0, max(0.0, spent / duration))
        for spent, (duration, count) in zip(seconds, totals, strict=False)
    )
    return EqualValue(
        metric=metric,
        goal=goal,
        value=sign * common,
        seconds=seconds,
        steps=tuple(int(each.steps[at]) for each, at in zip(curves, first, strict=True)),
        best=tuple(sign * float(each.max()) for each in scores),
        samples=samples,
    )
